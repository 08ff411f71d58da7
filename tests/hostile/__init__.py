"""Hostile inputs, one module for each way in which they enter."""
