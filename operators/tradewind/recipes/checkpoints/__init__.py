"""Checkpoints: their paths, the newest one, and when one is saved."""
