"""Several clusters of a fleet on this machine."""
