"""One pass of a repair over many slices."""
