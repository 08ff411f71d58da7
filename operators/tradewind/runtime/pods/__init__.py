"""Pods: run one program on every host of a group, and again after the group was lost; its processes fail together.

Nothing is imported here: training processes and DAG files import modules that need only the standard library.
"""
