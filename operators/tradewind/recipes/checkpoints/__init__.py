"""Checkpoints: where they lie, which is the newest, when one is saved."""
