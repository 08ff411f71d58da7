"""A cluster from a laptop: the way to its head, and its token."""
