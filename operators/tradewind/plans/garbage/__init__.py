"""Garbage collection: find and remove outputs that no DAG, run or pin requires."""
