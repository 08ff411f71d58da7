"""Metrics of a training while it runs."""
