"""Pipelines over files, compared with a loop of processes and with Ray Data."""
