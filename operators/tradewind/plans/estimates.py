"""What a run is likely to cost: what earlier attempts of the same step took, in hours on what they ran on.

An estimate is a memory, not a promise: it counts from the claim to the end, a queue included, and only steps that will
RUN are estimated. A step is looked up by its output path, then by its name; one that nothing is known of stays without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.steps import Resources, kind_of_resources


@dataclass(frozen=True)
class Estimate:
    """What one step took before.

    Attributes:
        hours: From the attempt's start to its end.
        resources: What it ran on, in words: ``"v4-16"``.
    """

    hours: float
    resources: str

    def __str__(self) -> str:
        return f"about {hours_in_words(self.hours)} on {self.resources}"


def with_estimates(plan: Plan, estimates: Mapping[str, Estimate]) -> Plan:
    """``plan`` with the estimate of each step that runs, and their sum; ``estimates`` by output path or step name."""
    found = {
        step.output_path: estimate
        for step in plan.decided(Decision.RUN)
        if (estimate := estimates.get(step.output_path) or estimates.get(step.name)) is not None
    }
    steps = tuple(_with_estimate(step, found.get(step.output_path)) for step in plan.steps)
    running = {step.output_path for step in plan.decided(Decision.RUN)}
    return replace(plan, steps=steps, estimate=_total(found, len(running)))


def place_in_words(resources: Resources | None) -> str | None:
    """What a step runs on that names ``resources``; None if it names none."""
    return (
        None if resources is None else resources_in_words({"kind": kind_of_resources(resources), **asdict(resources)})
    )


def resources_in_words(resources: Mapping[str, Any]) -> str:
    """The ``resources`` of an attempt's spec: the slice type for a TPU slice, else what a person would call it."""
    match resources.get("kind"):
        case "tpu_slice":
            return _slices(resources.get("num_slices", 1), str(resources["slice_type"]))
        case "hosts":
            return f"{_counted(resources['count'], 'host')} of {_each_host(resources)}"
        case "gpu":
            return _gpus(resources.get("count", 1), resources.get("type"))
        case "head_node":
            return "the head node"
        case "airflow_worker":
            return "the Airflow worker"
    return _counted(resources.get("num_cpus", 1), "CPU")


def hours_in_words(hours: float) -> str:
    """``2.5 h``, ``40 min``, ``30 s``: two digits are as much as a guess deserves."""
    if hours >= 1:
        return f"{_rounded(hours)} h"
    if hours * 60 >= 1:
        return f"{_rounded(hours * 60)} min"
    return f"{_rounded(hours * 3600)} s"


def _with_estimate(step: PlannedStep, estimate: Estimate | None) -> PlannedStep:
    runs = step.decision is Decision.RUN and estimate is not None
    return replace(step, estimate=str(estimate)) if runs else step


def _total(found: Mapping[str, Estimate], running: int) -> str | None:
    if not found:
        return None
    hours: defaultdict[str, float] = defaultdict(float)
    for estimate in found.values():
        hours[estimate.resources] += estimate.hours
    largest_first = sorted(hours.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{hours_in_words(each)} on {resources}" for resources, each in largest_first)
    unknown = running - len(found)
    return f"about {text}" + (f"; nothing is known of {unknown} of {running} steps that run" if unknown else "")


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


def _slices(counts: int | Sequence[int], slice_type: str) -> str:
    if isinstance(counts, int):
        return slice_type if counts == 1 else f"{counts} {slice_type} slices"
    return f"{min(counts)} to {max(counts)} {slice_type} slices"


def _each_host(resources: Mapping[str, Any]) -> str:
    if resources.get("gpus"):
        return _gpus(resources["gpus"], resources.get("gpu_type"))
    return _counted(resources.get("num_cpus", 1), "CPU")


def _gpus(count: float, gpu_type: str | None) -> str:
    return _counted(count, f"{gpu_type} GPU" if gpu_type else "GPU")


def _counted(count: float, unit: str) -> str:
    return f"{count:g} {unit}" + ("" if count == 1 else "s")
