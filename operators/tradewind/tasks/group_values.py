"""Values that the tasks of a user's DAG give to a group of steps; the group's plan reads them.

They are run values like a DAG's params, so they must be JSON: they are part of versions, and travel as an XCom.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import XComArg
from airflow.sdk.definitions.param import DagParam

from tradewind.steps import ExperimentError, check_bounded, coerce_param, truncated_repr


def check_values(where: str, values: Any, param_names: frozenset[str]) -> None:
    """Refuse values of a DAG file that a run could not use; ``where`` names the group in messages.

    Raises:
        ExperimentError: They are no mapping, take the name of a param, or are neither JSON nor results of tasks.
    """
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ExperimentError(f"{where}: values must map names to values, but is {truncated_repr(values)}.")
    if taken := sorted(param_names & values.keys()):
        raise ExperimentError(f"{where}: the DAG has a param {taken[0]!r} already, so give the value another name.")
    for name, value in values.items():
        check_bounded(name, f"{where}: the name of a value", is_json=True)
        plain_value(where, name, value)


def plain_value(where: str, name: str, value: Any) -> Any:
    """Return a value as JSON gives it back: with lists for tuples and for the results of a mapped task.

    Raises:
        ExperimentError: It is no JSON.
    """
    here = f"{where}: value {truncated_repr(name)}"
    check_bounded(value, here, is_json=True)
    try:
        plain = json.loads(json.dumps(value, default=_as_plain))
    except (TypeError, ValueError):
        raise ExperimentError(
            f"{here} is {truncated_repr(value)}, of type {type(value).__name__}, which JSON cannot represent. Give "
            "text, a number, or a list or dictionary of them, such as the isoformat() of a date, or a task's output."
        ) from None
    return coerce_param(plain, None, None)


def _as_plain(value: Any) -> list[Any] | None:
    if isinstance(value, (XComArg, DagParam)):
        return None  # while the DAG file is parsed: only a run has its value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return list(value)
    raise TypeError
