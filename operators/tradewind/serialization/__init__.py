"""A function and its config, written down for a cluster and read back there."""
