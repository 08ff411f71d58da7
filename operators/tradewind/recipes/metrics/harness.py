"""Tasks of the evaluation harness inside a training, where ``lm-eval`` is installed; elsewhere they are left out."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Collection, Iterable
from typing import Any


def usable_harness(given: Any) -> Any:
    """The config of the harness, or None where it is not installed, which is told."""
    if given is not None and not _is_installed():
        print("train_config.eval_harness is left out: lm-eval is not installed on this cluster.", flush=True)
        return None
    return given


def check_tasks(given: Any) -> None:
    """Refuse tasks that the harness, if it is installed, does not have: Levanter asks for one ten times, with growing
    pauses, on the slice.

    Raises:
        ValueError: With the nearest names.
    """
    if given is None or not _is_installed():
        return
    tasks: Any = importlib.import_module("lm_eval.tasks")
    refuse_unknown(given.task_spec, tasks.TaskManager().all_tasks)


def _is_installed() -> bool:
    return importlib.util.find_spec("lm_eval") is not None


def refuse_unknown(tasks: Iterable[Any], known: Collection[str]) -> None:
    """Raise ``ValueError`` for a task that is neither known nor says itself what it is made of."""
    for task in tasks:
        name = task if isinstance(task, str) else task.task
        if name not in known and getattr(task, "dataset_path", None) is None:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see 'lm-eval ls tasks'."
            raise ValueError(f"train_config.eval_harness.task_spec has {name!r}, which lm-eval does not know: {hint}")
