"""The cluster files of Ray's launcher: written from the fleet file, and checked whoever wrote them."""
