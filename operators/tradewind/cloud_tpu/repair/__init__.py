"""Slices that are dead are deleted and created again, by one at a time."""
