"""Asset events: one for each output that a task made, so that no other DAG runs without cause.

The step's name is both the name and the URI of its asset: ``Asset("tokenize/code")`` in another DAG's schedule is the
same asset. Airflow stores only URIs of ASCII, so other characters are percent-encoded there, and such an asset is
``Asset.ref(name="größe")``. The step's task declares it as an outlet. Airflow emits an event for every outlet of a
successful task, so a task that made nothing removes its outlet first.

An ``AssetAlias`` would avoid this, but Airflow adds the alias's asset to its tables at the first event. If two first
events coincide, Airflow fails the slower task although its output is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from airflow.sdk import Asset, Context

from tradewind.plans.plan import Decision, PlannedStep
from tradewind.steps import ExperimentError, truncated_repr

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


def emit_made(context: Context, name: str, version: str, path: str, producer: str) -> None:
    """Emit the event of an output that this task made; it counts if the task succeeds.

    Args:
        context: The task's context.
        name: The step's name.
        version: Name and hash of the step.
        path: The output path.
        producer: The attempt that made it, and its task.
    """
    _emit_only(context, {name: {"version": version, "path": path, "producer": producer}}, declared=(name,))


def emit_nothing(context: Context, names: Iterable[str]) -> None:
    """Emit no event for the steps ``names``, since the task made none of their outputs."""
    _emit_only(context, {}, declared=names)


def emit_reused(context: Context, steps: Sequence[PlannedStep]) -> None:
    """Emit an event marked ``cached`` for each reused step whose asset the ``plan`` task declares (opt-in)."""
    extras = {
        step.name: {"version": step.version_name, "path": step.output_path, "producer": step.producer, "cached": True}
        for step in steps
        if step.decision is Decision.REUSE
    }
    _emit_only(context, extras, declared=[step.name for step in steps])


def _emit_only(context: Context, extras: Mapping[str, dict[str, Any]], *, declared: Iterable[str]) -> None:
    """Of the assets of the steps ``declared``, emit those with an extra; other outlets belong to the user."""
    task: Any = context["task"]
    removed = {(asset.name, asset.uri) for asset in map(step_asset, declared) if asset.name not in extras}
    keys = [(outlet.name, outlet.uri) if isinstance(outlet, Asset) else None for outlet in task.outlets]
    task.outlets = [outlet for outlet, key in zip(task.outlets, keys, strict=True) if key not in removed]
    for asset in map(step_asset, extras):
        if (asset.name, asset.uri) in keys:
            context["outlet_events"][asset].extra = extras[asset.name]
