"""Mirrored paths of a step, brought into the region of its run before its function is called."""
