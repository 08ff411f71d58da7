"""Asset events: one for each output that a task really made, so that nobody's DAG runs for nothing.

The asset is called as its step, and its URI is that name too: ``Asset("tokenize/code")`` in another DAG's schedule is
the same asset. The step's task declares an alias of this name and adds the asset itself only when it made the output,
since Airflow gives an event for every declared asset, whatever the task did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Asset, AssetAlias, Context

from tradewind.plans.plan import Decision, PlannedStep
from tradewind.steps import ExperimentError


class AssetNameError(ExperimentError):
    """No asset can be called as the step is."""


def step_alias(name: str) -> AssetAlias:
    """What the task of step ``name`` declares as its outlet.

    Raises:
        AssetNameError: Airflow refuses the name, which is better known before the step has run.
    """
    try:
        return AssetAlias(Asset(name).name)
    except ValueError as error:
        raise AssetNameError(f"Step {name!r} cannot be called so, as its asset could not: {error}.") from error


def emit_made(context: Context, name: str, version: str, path: str, producer: str) -> None:
    """Give the event of an output that this task made; it counts when the task ends green.

    Args:
        context: The task's.
        name: The step's.
        version: Name and hash of the step.
        path: Where the output is.
        producer: The attempt that made it, and whose it was.
    """
    _emit(context, name, {"version": version, "path": path, "producer": producer})


def emit_reused(context: Context, steps: Iterable[PlannedStep]) -> None:
    """Give an event marked ``cached`` for each reused step whose alias the ``plan`` task declares; that is opt-in."""
    for step in steps:
        if step.decision is Decision.REUSE:
            extra = {"version": step.version, "path": step.output_path, "producer": step.producer, "cached": True}
            _emit(context, step.name, extra)


def _emit(context: Context, name: str, extra: dict[str, Any]) -> None:
    alias = AssetAlias(name)
    if alias in context["task"].outlets:
        context["outlet_events"][alias].add(Asset(name), extra=extra)
