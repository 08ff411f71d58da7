"""Asset events: one for each output that a task really made, so that nobody's DAG runs for nothing.

The asset is called as its step, and its URI is that name too: ``Asset("tokenize/code")`` in another DAG's schedule is
the same asset. The step's task declares it as an outlet. Airflow gives an event for every outlet that a task still has
when it ends green, so a task that made nothing takes its outlet away before that.

An ``AssetAlias`` would spare this, but Airflow adds the alias's asset to its tables when the first event comes; where
two first events come at once, it marks the slower task as failed, although that has made its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, Context

from tradewind.plans.plan import Decision, PlannedStep
from tradewind.steps import ExperimentError


def step_asset(name: str) -> Asset:
    """What the task of step ``name`` declares as its outlet.

    Raises:
        ExperimentError: Airflow refuses the name, which is better known before the step has run.
    """
    try:
        return Asset(name)
    except ValueError as error:
        raise ExperimentError(f"Step {name!r} cannot be called so, as its asset could not: {error}.") from error


def emit_made(context: Context, name: str, version: str, path: str, producer: str) -> None:
    """Give the event of an output that this task made; it counts when the task ends green.

    Args:
        context: The task's.
        name: The step's.
        version: Name and hash of the step.
        path: Where the output is.
        producer: The attempt that made it, and whose it was.
    """
    _emit_only(context, {name: {"version": version, "path": path, "producer": producer}}, declared=(name,))


def emit_nothing(context: Context, names: Iterable[str]) -> None:
    """Give no event of the steps ``names``, since the task made nothing of them."""
    _emit_only(context, {}, declared=names)


def emit_reused(context: Context, steps: Sequence[PlannedStep]) -> None:
    """Give an event marked ``cached`` for each reused step whose asset the ``plan`` task declares; that is opt-in."""
    extras = {
        step.name: {"version": step.version_name, "path": step.output_path, "producer": step.producer, "cached": True}
        for step in steps
        if step.decision is Decision.REUSE
    }
    _emit_only(context, extras, declared=[step.name for step in steps])


def _emit_only(context: Context, extras: Mapping[str, dict[str, Any]], *, declared: Iterable[str]) -> None:
    """Of the assets of the steps ``declared``, give those that have an extra; all other outlets are the user's."""
    task: Any = context["task"]
    silent = {(asset.name, asset.uri) for asset in map(Asset, declared) if asset.name not in extras}
    keys = [(outlet.name, outlet.uri) if isinstance(outlet, Asset) else None for outlet in task.outlets]
    task.outlets = [outlet for outlet, key in zip(task.outlets, keys, strict=True) if key not in silent]
    for asset in map(Asset, extras):
        if (asset.name, asset.uri) in keys:
            context["outlet_events"][asset].extra = extras[asset.name]
