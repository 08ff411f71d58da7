"""Distinguish Ray's supervisor of a job from the job's other processes.

The supervisor's title contains its class name or its actor's name.
"""

from __future__ import annotations

import psutil

TITLES = ("JobSupervisor", "ray::_ray_internal_job_actor")


def is_supervisor(process: psutil.Process) -> bool:
    """Return whether ``process`` is the supervisor that runs a job's entrypoint for Ray."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(title in line for title in TITLES)
