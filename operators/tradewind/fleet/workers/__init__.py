"""Slices of a cluster that its autoscaler does not make: reserved ones, and others that people ask for."""
