"""Measure served models: requests through a pool beside the engine alone, and recovery from a killed worker."""
