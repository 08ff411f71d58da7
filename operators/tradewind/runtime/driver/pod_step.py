"""Run a step on slices or on a group of hosts: check its config before the reservation, then run it to its end.

A preemption or a failure ends the processes, not the attempt: the function continues from its newest checkpoint. The
record of an attempt that the pod gave up holds the function's own error, if it raised one, and the pod's history.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from glob import has_magic
from pathlib import PurePosixPath
from typing import Final

from tradewind.attempts.spec_digest import CHANGED_LATER, EXIT_SPEC_CHANGED, SpecChangedError, driver_arguments
from tradewind.attempts.store_retry import retry_store
from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.records.attempts import Attempt, AttemptError, attempt_folder, attempt_path
from tradewind.runtime.driver.child import read_error, run_guarded_child
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.pods.budgets import Budgets, PodGivenUpError
from tradewind.runtime.pods.capacity.slices import HostGroup
from tradewind.runtime.pods.nodes import Stall
from tradewind.runtime.pods.process_env import ON_CPU
from tradewind.runtime.pods.timeline import TIMELINE_FILE, Timeline
from tradewind.serialization.masking import NAMES_VARIABLE
from tradewind.serialization.spec import StepSpec
from tradewind.steps import Hosts, TpuSlice
from tradewind.storage.trees import list_files

CHECKPOINT_SENTINEL: Final = "metadata.json"
"""Levanter writes this file of a checkpoint last."""
_FLUSH_S: Final = 2.0
_NUMBER: Final = re.compile(r"(\d+)")


def run_on_hosts(
    command: Sequence[str],
    attempt: Attempt,
    spec: StepSpec,
    resources: TpuSlice | Hosts,
    secrets: Mapping[str, str],
    deadline: LeaseDeadline,
    fence_s: float,
    renewed_at: Callable[[], float],
) -> AttemptError | None:
    """Run ``command`` on every host of ``resources``; return the error of a pod that gave up, else None.

    A host kills its process ``fence_s`` after ``renewed_at``, the last lease renewal that it knows: another attempt may
    own the lease then.

    Raises:
        NoFreeSliceError: The group of hosts cannot be reserved at all.
        SpecChangedError: A host found another spec than the claimed one.
    """
    if (error := preflight_error(attempt, spec, resources, secrets, deadline)) is not None:
        return error
    _connect()
    from tradewind.runtime.pods.runner import run_pod

    folder = attempt_folder(spec.output_path, attempt.number)
    timeline = Timeline(posixpath.join(folder, TIMELINE_FILE))
    try:
        run_pod(
            command,
            HostGroup.of(resources),
            num_slices=resources.num_slices if isinstance(resources, TpuSlice) else 1,
            budgets=Budgets(resources.max_preemptions, resources.max_failures),
            stall=Stall(resources.frozen_s, resources.stall_limit_s),
            env={**secrets, NAMES_VARIABLE: ",".join(secrets)} if secrets else {},
            log_dir=folder,
            progress=lambda: newest_progress(spec.output_path, spec.resumable),
            timeline=timeline,
            driver_timeout_s=fence_s,
            renewed_at=renewed_at,
            spare=resources.spare if isinstance(resources, TpuSlice) else None,
        )
    except SystemError as wrapper:  # Ray's compiled code wraps exceptions of signal handlers so
        raise wrapper.__cause__ or wrapper from None
    except PodGivenUpError as gave_up:
        if gave_up.incident.exit_code == EXIT_SPEC_CHANGED:
            raise SpecChangedError(CHANGED_LATER) from None
        restarts = max((event.restarts or 0 for event in timeline.events), default=0)  # before the last start
        return give_up_error(gave_up, attempt, spec, restarts)
    finally:
        timeline.flush(_FLUSH_S)
    return None


def slice_counts(resources: TpuSlice | Hosts) -> list[int]:
    """Return the numbers of slices that the function may run on, smallest first; a group of hosts counts as one."""
    counts = resources.num_slices if isinstance(resources, TpuSlice) else 1
    return [counts] if isinstance(counts, int) else sorted(set(counts))


def devices_of(resources: TpuSlice | Hosts, num_slices: int | None = None) -> int:
    """Return the number of devices over ``num_slices`` slices, by default over the fewest allowed."""
    if isinstance(resources, Hosts):
        return resources.count * max(1, resources.gpus)
    return slice_type(resources.slice_type).chips * (num_slices or slice_counts(resources)[0])


def newest_progress(output_path: str, resumable: Sequence[str]) -> str | None:
    """Describe a step's progress: its newest complete checkpoint, else the newest of its other resumable files.

    Numbers in names count as numbers, so ``step-100`` is newer than ``step-20``.
    """
    paths = [path for glob in resumable for path in _paths_below(output_path, glob)]
    checkpoints = [posixpath.dirname(path) for path in paths if posixpath.basename(path) == CHECKPOINT_SENTINEL]
    if checkpoints:
        return max(checkpoints, key=_natural)
    return f"{max(paths, key=_natural)}, {len(paths)} in all" if paths else None


def _paths_below(output_path: str, glob: str) -> list[str]:
    """Return the files in the folder that a glob begins with, relative to the output."""
    parts = PurePosixPath(glob).parts
    plain = next((index for index, part in enumerate(parts) if has_magic(part)), len(parts))
    folder = posixpath.join(*parts[:plain]) if plain else ""
    files = list_files(posixpath.join(output_path, folder))
    return [posixpath.join(folder, file.path) for file in files if not file.path.startswith(".")]


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(path)]


def _connect() -> None:
    """Connect to Ray and keep this driver's SIGTERM handler: Ray's would exit before the driver records its end."""
    import ray
    from ray._private import worker

    worker._worker_logs_enabled = False  # when a node dies, Ray prints the last 20 lines of its raylet here
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    except SystemExit:  # Ray's handler received a SIGTERM meanwhile
        if callable(handler):
            handler(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def preflight_error(
    attempt: Attempt, spec: StepSpec, resources: TpuSlice | Hosts, secrets: Mapping[str, str], deadline: LeaseDeadline
) -> AttemptError | None:
    """Return the error of the step's own check of its config, for every number of slices that the pod may have.

    A check that dies counts as passed.
    """
    file = attempt_path(spec.output_path, attempt.number)
    sizes = [f"{devices_of(resources, count)}:{count}" for count in slice_counts(resources)]
    command = [
        sys.executable,
        "-u",
        "-m",
        "tradewind.runtime.driver.run_preflight",
        *driver_arguments(file, attempt),
        *sizes,
    ]
    if run_guarded_child(command, {**os.environ, **secrets, **ON_CPU}, deadline) == 0:
        return None
    error = retry_store(lambda: read_error(spec.output_path, attempt.number))
    if error is None:
        print("tradewind: the check of the config died. The step continues without it.", flush=True)
    return error


def give_up_error(error: PodGivenUpError, attempt: Attempt, spec: StepSpec, restarts: int) -> AttemptError:
    """Return the error for the record: the function's last one with the pod's history, else the history alone."""
    printed = error.incident.traceback
    path, number = spec.output_path, attempt.number
    raised = retry_store(lambda: read_error(path, number, restarts, printed)) if printed else None
    if raised is None:
        return AttemptError(type(error).__qualname__, str(error), printed or "")
    return AttemptError(raised.type, f"{raised.message} ({error})", raised.traceback)
