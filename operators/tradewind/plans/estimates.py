"""What a run is likely to cost: what earlier attempts of the same step took, in hours on what they ran on.

An estimate is a memory, not a promise: it counts from the claim to the end, a queue included, and only steps that will
RUN are estimated. A step is looked up by its output path, then by its name; one that nothing is known of stays without.
"""

from __future__ import annotations

import datetime
import logging
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.version_records import list_folders
from tradewind.records.attempts import BadAttemptError, attempt_path, parse_attempt
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import read_leases
from tradewind.steps import Resources, kind_of_resources
from tradewind.storage.bounded_read import Content
from tradewind.storage.files import read_contents
from tradewind.text import pluralize


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
        return f"about {format_hours(self.hours)} on {self.resources}"


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


def describe_resources(resources: Resources | None) -> str | None:
    """What a step runs on that names ``resources``; None if it names none."""
    return (
        None
        if resources is None
        else describe_spec_resources({"kind": kind_of_resources(resources), **asdict(resources)})
    )


def describe_spec_resources(resources: Mapping[str, Any]) -> str:
    """The ``resources`` of an attempt's spec: the slice type for a TPU slice, else what a person would call it."""
    match resources.get("kind"):
        case "tpu_slice":
            return _slices(resources.get("num_slices", 1), str(resources["slice_type"]))
        case "hosts":
            return f"{pluralize(resources['count'], 'host')} of {_each_host(resources)}"
        case "gpu":
            return _gpus(resources.get("count", 1), resources.get("type"))
        case "head_node":
            return "the head node"
        case "airflow_worker":
            return "the Airflow worker"
    return pluralize(resources.get("num_cpus", 1), "CPU")


def format_hours(hours: float) -> str:
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
    text = ", ".join(f"{format_hours(each)} on {resources}" for resources, each in largest_first)
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
    return pluralize(resources.get("num_cpus", 1), "CPU")


def _gpus(count: float, gpu_type: str | None) -> str:
    return pluralize(count, f"{gpu_type} GPU" if gpu_type else "GPU")


# What earlier attempts at the steps of a plan took, where their files say so: the newest that succeeded counts.
#
# An attempt counts from its claim to its end, so a queue before it is in it. The work is bounded, since an estimate is
# worth less than a quick plan: steps beyond the bound go without.

logger = logging.getLogger(__name__)

MAX_STEPS: Final = 200
MAX_VERSIONS: Final = 8
"""Of one step."""


def read_estimates(plan: Plan) -> dict[str, Estimate]:
    """Output path -> what the step took when it, or another version of it, was made last.

    A store that does not answer costs the estimates, not the plan.
    """
    steps = plan.decided(Decision.RUN)[:MAX_STEPS]
    try:
        versions = _versions_of(steps)
        leases = read_leases(list({path for paths in versions.values() for path in paths}))
        newest = {path: lease for path, lease in leases.items() if lease.phase is Phase.COMMITTED}
        files = {path: attempt_path(path, lease.attempt) for path, lease in newest.items()}
        contents = read_contents(list(files.values()))
    except Exception as error:  # each store has its own
        logger.warning("What earlier attempts took could not be read: %s", error)
        return {}
    found = {
        path: estimate for path, file in files.items() if (estimate := _estimate(file, contents.get(file))) is not None
    }
    return {
        step.output_path: found[best]
        for step in steps
        if (best := _best(step, versions[step.output_path], newest, found)) is not None
    }


def _versions_of(steps: Iterable[PlannedStep]) -> dict[str, list[str]]:
    """Output path -> the outputs of the same name beside it, its own included."""
    paths = [step.output_path for step in steps]
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for folder, names in list_folders(sorted({posixpath.dirname(path) for path in paths})).items():
        for name in names:
            alike[posixpath.join(folder, name.rpartition("-")[0])].append(posixpath.join(folder, name))
    return {path: list(dict.fromkeys([path, *alike[path.rpartition("-")[0]][:MAX_VERSIONS]])) for path in paths}


def _best(
    step: PlannedStep, versions: Iterable[str], leases: Mapping[str, Lease], found: Mapping[str, Estimate]
) -> str | None:
    known = [path for path in versions if path in found]
    return max(known, key=lambda path: (path == step.output_path, leases[path].timestamp), default=None)


def _estimate(file: str, found: Content | None) -> Estimate | None:
    """What the attempt in a file took; None for one that does not say."""
    try:
        if found is None:
            return None
        attempt = parse_attempt(file, found)
        took = datetime.datetime.fromisoformat(attempt.ended_at) - datetime.datetime.fromisoformat(attempt.started_at)
        return Estimate(took.total_seconds() / 3600, describe_spec_resources(attempt.spec["resources"]))
    except (BadAttemptError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
