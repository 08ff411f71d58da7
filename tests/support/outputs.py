"""Outputs with records, made by the functions that attempts use, without running a step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tradewind.attempts.step_lease import StepLease
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import commit_attempt
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import ExecutorStep, resolve, versioned
from tradewind.storage.files import write_text

_CODE = CodeFolder(Path(__file__).parents[2])


def work(config: object) -> None: ...


def by_task(dag: str = "nightly", run: str = "manual__1", task: str = "made", map_index: int = -1) -> dict[str, Any]:
    """Return how a task names itself in its claims."""
    return {"dag": dag, "run": run, "task": task, "map_index": map_index, "try": 1, "max_tries": 3}


def make_output(
    prefix: str,
    name: str,
    value: Any = 0,
    *,
    by: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    end: Phase = Phase.COMMITTED,
) -> str:
    """Make an output of the step of that name whose version depends on ``value``; return its path.

    Args:
        by: The claimer.
        files: What the step writes.
        end: How the attempt ends; in a live phase, it does not.
    """
    step = ExecutorStep(name, work, {"value": versioned(value)})
    resolved = resolve([step], prefix).of(step)
    lease = StepLease(resolved, by or by_task(task=name.replace("/", ".")))
    claimed = lease.claim(None, lambda: step_spec(resolved, _CODE))
    assert claimed is not None
    held = LeaseStore(resolved.output_path).take_over(claimed.attempt.job, "owner")
    for file, text in (files or {"part.txt": "made"}).items():
        write_text(f"{resolved.output_path}/{file}", text)
    store = LeaseStore(resolved.output_path)
    if end is Phase.COMMITTED:
        commit_attempt(partial(store.change, held), resolved.output_path, claimed.attempt, lambda: None)
    elif end is not Phase.RUNNING:
        store.change(held, phase=end)
    return resolved.output_path
