"""Distinguish Ray's supervisor of a job from the job's other processes."""

from __future__ import annotations

import psutil

TITLES = ("JobSupervisor", "ray::_ray_internal_job_actor")
"""Class name and actor name of a supervisor; its process title has one of them."""


def is_supervisor(process: psutil.Process) -> bool:
    """Return whether ``process`` is the supervisor that runs a job's entrypoint for Ray."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(title in line for title in TITLES)
