"""Runs one program on every host of a group that lives and dies together, and again when the group was lost.

Nothing is imported here: training processes and DAG files read parts of this package that need only the standard
library.
"""
