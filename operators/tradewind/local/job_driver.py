"""What a script inside a Ray job hands to the drivers of its steps: they and the hosts of their pods find its modules.

A driver runs in the folder of the script. The workers of its Ray job, and so the hosts of its pod, run in the job's
working directory, which lies elsewhere on each node: what lies below it is named from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_RAY_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets it for the entrypoint of a job: what the Ray drivers that this starts take over from the job."""


def in_ray_job(environ: Mapping[str, str]) -> bool:
    """Whether a process with this environment is a Ray job's, so that it can reserve hosts on its cluster."""
    return _RAY_JOB in environ


def driver_env(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of a driver that runs in ``folder``, that of the script."""
    if not in_ray_job(environ):
        return dict(environ)
    job = json.loads(environ[_RAY_JOB])
    runtime_env = dict(job.get("runtime_env") or {})
    paths = _entries(environ.get("PYTHONPATH", ""))
    for_workers = dict(runtime_env.get("env_vars") or {})
    place = _seen_by_workers(folder, paths if "working_dir" in runtime_env else [])
    for_workers["PYTHONPATH"] = os.pathsep.join([place, *_entries(for_workers.get("PYTHONPATH", ""))])
    runtime_env["env_vars"] = for_workers
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths),  # some are relative to the job's
        _RAY_JOB: json.dumps({**job, "runtime_env": runtime_env}),
    }


def _entries(path: str) -> list[str]:
    return [entry for entry in path.split(os.pathsep) if entry]


def _seen_by_workers(folder: Path, paths: list[str]) -> str:
    """The folder as the job's workers can name it: Ray puts their working directory first into PYTHONPATH."""
    real = os.path.realpath(folder)
    above = (os.path.realpath(path) for path in paths if os.path.isabs(path))
    working_dir = next((path for path in above if Path(real).is_relative_to(path)), None)
    return os.path.relpath(real, working_dir) if working_dir else real
