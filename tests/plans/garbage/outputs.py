"""Steps and outputs for tests of garbage collection."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.claims import renewing
from tradewind.attempts.step_lease import ClaimedAttempt, StepLease
from tradewind.plans.garbage.collection import Garbage, RequiredOutputs, Sweep, find_garbage_below
from tradewind.records.adoption import Adoption, adopt
from tradewind.records.record import Status, write_status
from tradewind.serialization.spec import StepSpec
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned
from tradewind.storage.files import write_text
from tradewind.storage.trees import list_files

BY = {"gc": "ada"}
MONTH_S = 30 * 86400.0


@dataclass(frozen=True)
class Config:
    value: Any


def steps(prefix: str, value: Any) -> tuple[ResolvedStep, ...]:
    """Return ``data/raw`` with the version ``value``, and ``train`` that reads it."""
    raw = ExecutorStep("data/raw", None, Config(versioned(value)))
    return resolve([ExecutorStep("train", None, Config(raw))], prefix).steps


def made(step: ResolvedStep, size: int = 100) -> str:
    """Make a finished output of ``step`` and return its path."""
    write_text(f"{step.output_path}/part/model", "x" * size)
    adopt(Adoption(step, "my.train", step.output_path, {"user": "ada"}), renewing)
    return step.output_path


def make_raw(prefix: str) -> str:
    return made(steps(prefix, 1)[0])


def make_raw_as_marin(prefix: str) -> str:
    raw = steps(prefix, 1)[0].output_path
    write_text(f"{raw}/part", "x")
    write_status(raw, Status.SUCCESS)
    return raw


def required_by(*steps: ResolvedStep) -> RequiredOutputs:
    required = RequiredOutputs()
    for step in steps:
        required.add_step(step)
    return required


def aged(paths: Iterable[str]) -> None:
    """Set the dates of these local files to two months ago."""
    then = time.time() - 2 * MONTH_S
    for path in paths:
        for file in list_files(path):
            os.utime(f"{path}/{file.path}", (then, then))


def sweep(prefix: str, required: RequiredOutputs | None = None, older_than_s: float = MONTH_S, **options: Any) -> Sweep:
    [found] = find_garbage_below([prefix], required or RequiredOutputs(), older_than_s, **options)
    return found


def garbage_of(
    prefix: str, required: RequiredOutputs | None = None, older_than_s: float = MONTH_S, **options: Any
) -> list[str]:
    return [each.path for each in sweep(prefix, required, older_than_s, **options).garbage]


def garbage_at(prefix: str) -> Garbage:
    """Return the only output below ``prefix``, whatever its age."""
    [garbage] = sweep(prefix, older_than_s=0.0).garbage
    return garbage


def files_of(path: str) -> list[str]:
    return [file.path for file in list_files(path)]


def reader(prefix: str, will_claim: Callable[[str], None] = lambda job: None) -> StepLease:
    """Return ``train`` of version 1 as a task that is about to claim sees it."""
    return StepLease(steps(prefix, 1)[1], {"dag": "d", "run": "r", "task": "train"}, will_claim=will_claim)


def claim(step: StepLease) -> ClaimedAttempt | None:
    spec = StepSpec("train", step.name, step.path, "", None, None, {"kind": "airflow_worker"}, False)
    return step.claim(step.read().lease, lambda: spec)
