"""The nodes of a cluster: which there are, which are lost, which are asked for."""
