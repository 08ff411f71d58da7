"""Serialization of a function and its config for a cluster."""
