"""Asset events: one for each output that a task made, so that no other DAG runs without cause.

The step's name is both the name and the URI of its asset: ``Asset("tokenize/code")`` in another DAG's schedule is the
same asset. Airflow stores only URIs of ASCII, so other characters are percent-encoded there, and such an asset is
``Asset.ref(name="größe")``. The step's task declares it as an outlet, except in large experiments. Airflow emits an
event for every outlet that a successful task has in the end and of which it knows the asset, from a declaration or from
another DAG's schedule. So a task that made an output adds the outlet, and one that made nothing removes it.

An ``AssetAlias`` would avoid this, but Airflow adds the alias's asset to its tables at the first event. If two first
events coincide, Airflow fails the slower task although its output is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from airflow.sdk import Asset, Context

from tradewind.plans.plan import Decision, PlannedStep
from tradewind.steps import ExperimentError, truncated_repr

_MOST_DECLARED: Final = 200
"""Airflow 3.3 decodes the DAG once per declared asset for its own graph: with 1,000, in minutes and gigabytes."""
_ASCII: Final = bytes(range(128)).decode()


def step_asset(name: str) -> Asset:
    """Return the outlet of the task of step ``name``.

    Raises:
        ExperimentError: Airflow refuses the name; raised before the step runs.
    """
    try:
        return Asset(name, name if name.isascii() else quote(name, safe=_ASCII))
    except ValueError as error:
        raise ExperimentError(
            f"Step {truncated_repr(name)} cannot have this name, since Airflow refuses its asset: {error}."
        ) from error


def declared_outlets(name: str, steps: int) -> list[Asset]:
    """Return what the task of step ``name`` declares in an experiment with this many steps."""
    asset = step_asset(name)  # an invalid name is refused in any case
    return [asset] if steps <= _MOST_DECLARED else []


def emit_made(context: Context, name: str, version: str, path: str, producer: str) -> None:
    """Emit the event of an output that this task made; it counts if the task succeeds.

    Args:
        context: The task's context.
        name: The step's name.
        version: Name and hash of the step.
        path: The output path.
        producer: The attempt that made it, and its task.
    """
    _emit(context, name, {"version": version, "path": path, "producer": producer})


def emit_nothing(context: Context, name: str) -> None:
    """Emit no event for the step ``name``, since the task did not make its output."""
    asset = step_asset(name)
    task: Any = context["task"]
    task.outlets = [outlet for outlet in task.outlets if outlet != asset]


def emit_reused(context: Context, steps: Sequence[PlannedStep]) -> None:
    """Emit an event marked ``cached`` for each reused step."""
    for step in steps:
        if step.decision is Decision.REUSE:
            extra = {"version": step.version_name, "path": step.output_path, "producer": step.producer, "cached": True}
            _emit(context, step.name, extra)


def _emit(context: Context, name: str, extra: dict[str, Any]) -> None:
    asset = step_asset(name)
    task: Any = context["task"]
    if asset not in task.outlets:
        task.outlets = [*task.outlets, asset]
    context["outlet_events"][asset].extra = extra
