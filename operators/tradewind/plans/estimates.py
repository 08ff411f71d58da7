"""Cost estimates of a run: what earlier attempts of its steps took, in hours and resources.

An attempt counts from its claim to its end, queue time included. Only steps that will RUN get an estimate, from the
newest successful attempt: at the same output path, else under the same name. A step without a known attempt has none.

The number of reads is bounded, since an estimate is worth less than a quick plan. Steps beyond the bound have no
estimate.
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
from tradewind.records.attempts import Attempt, BadAttemptError, attempt_path, parse_attempt
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import read_leases
from tradewind.steps import Resources, kind_of_resources
from tradewind.storage.bounded_read import Content
from tradewind.storage.files import read_contents
from tradewind.text import pluralize

logger = logging.getLogger(__name__)

MAX_STEPS: Final = 200
MAX_VERSIONS: Final = 8
"""Per step."""


@dataclass(frozen=True)
class Estimate:
    """Cost of an earlier attempt of one step.

    Attributes:
        hours: From the attempt's start to its end.
        resources: Its resources in words: ``"v4-16"``.
    """

    hours: float
    resources: str

    def __str__(self) -> str:
        return f"about {format_hours(self.hours)} on {self.resources}"


@dataclass(frozen=True)
class FinishedRun:
    """The newest attempt at an output, once it has ended.

    Attributes:
        outcome: How it ended: succeeded, failed, stopped or lost.
        hours: From its claim to its end, queue time included.
        resources: Its resources in words; None if its spec does not state them.
        ended_at: Time of the end in ISO 8601.
    """

    attempt: int
    outcome: str
    hours: float
    resources: str | None
    ended_at: str


def with_estimates(plan: Plan, estimates: Mapping[str, Estimate]) -> Plan:
    """Add estimates and their sum to ``plan``; ``estimates`` is by output path or step name."""
    running = plan.decided(Decision.RUN)
    found = {
        step.output_path: estimate
        for step in running
        if (estimate := estimates.get(step.output_path) or estimates.get(step.name)) is not None
    }
    known = {(path, Decision.RUN): str(estimate) for path, estimate in found.items()}
    steps = tuple(
        replace(step, estimate=known.get((step.output_path, step.decision), step.estimate)) for step in plan.steps
    )
    return replace(plan, steps=steps, estimate=_total(found, len({step.output_path for step in running})))


def describe_resources(resources: Resources | None) -> str | None:
    """Describe the resources of a step; None if it names none."""
    if resources is None:
        return None
    return describe_spec_resources({"kind": kind_of_resources(resources), **asdict(resources)})


def describe_spec_resources(resources: Mapping[str, Any]) -> str:
    """Describe the ``resources`` of an attempt's spec: the slice type of a TPU slice, else a short text."""
    match resources.get("kind"):
        case "tpu_slice":
            counts, slice_type = resources.get("num_slices", 1), str(resources["slice_type"])
            if not isinstance(counts, int):
                return f"{min(counts)} to {max(counts)} {slice_type} slices"
            return slice_type if counts == 1 else f"{counts} {slice_type} slices"
        case "hosts":
            cpus = pluralize(resources.get("num_cpus", 1), "CPU")
            each = _gpus(resources["gpus"], resources.get("gpu_type")) if resources.get("gpus") else cpus
            return f"{pluralize(resources['count'], 'host')} of {each}"
        case "gpu":
            return _gpus(resources.get("count", 1), resources.get("type"))
        case "head_node":
            return "the head node"
        case "airflow_worker":
            return "the Airflow worker"
    return pluralize(resources.get("num_cpus", 1), "CPU")


def format_hours(hours: float) -> str:
    """Format as ``2.5 h``, ``40 min`` or ``30 s``, with at most two significant digits."""
    if hours >= 1:
        return f"{_round(hours)} h"
    if hours * 60 >= 1:
        return f"{_round(hours * 60)} min"
    return f"{_round(hours * 3600)} s"


def _total(found: Mapping[str, Estimate], running: int) -> str | None:
    if not found:
        return None
    hours: defaultdict[str, float] = defaultdict(float)
    for estimate in found.values():
        hours[estimate.resources] += estimate.hours
    largest_first = sorted(hours.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{format_hours(each)} on {resources}" for resources, each in largest_first)
    unknown = running - len(found)
    return f"about {text}" + (f"; unknown for {unknown} of {running} steps that run" if unknown else "")


def _round(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


def _gpus(count: float, gpu_type: str | None) -> str:
    return pluralize(count, f"{gpu_type} GPU" if gpu_type else "GPU")


def read_estimates(plan: Plan) -> dict[str, Estimate]:
    """Return output path -> the cost of the newest attempt at it, or at another version of the step.

    If the store does not answer, the plan has no estimates.
    """
    steps = plan.decided(Decision.RUN)[:MAX_STEPS]
    try:
        versions = _versions_of(steps)
        leases = read_leases(list({path for paths in versions.values() for path in paths}))
        newest = {path: lease for path, lease in leases.items() if lease.phase is Phase.COMMITTED}
        files = {path: attempt_path(path, lease.attempt) for path, lease in newest.items()}
        contents = read_contents(list(files.values()))
    except Exception as error:  # each store has its own exceptions
        logger.warning("Earlier attempts could not be read, so the plan has no estimates: %s", error)
        return {}
    found = {
        path: estimate for path, file in files.items() if (estimate := _estimate(file, contents.get(file))) is not None
    }
    return {
        step.output_path: found[best]
        for step in steps
        if (best := _best(step, versions[step.output_path], newest, found)) is not None
    }


def read_runs(output_paths: Sequence[str]) -> dict[str, FinishedRun]:
    """Return output path → the newest attempt that ended there; outputs without one are omitted.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    numbers = {path: lease.attempt for path, lease in read_leases(output_paths).items() if lease.attempt}
    files = {path: attempt_path(path, number) for path, number in numbers.items()}
    contents = read_contents(list(files.values()))
    found = {path: _finished_run(file, contents[file]) for path, file in files.items() if file in contents}
    return {path: run for path, run in found.items() if run is not None}


def _finished_run(file: str, found: Content) -> FinishedRun | None:
    try:
        attempt = parse_attempt(file, found)
        if attempt.outcome is None:
            return None
        hours = _hours_of(attempt)
    except (BadAttemptError, ValueError, OverflowError, TypeError):
        return None
    try:
        resources = describe_spec_resources(attempt.spec["resources"])
    except (ValueError, KeyError, TypeError, AttributeError):
        resources = None
    return FinishedRun(attempt.number, attempt.outcome.value, hours, resources, attempt.ended_at)


def _hours_of(attempt: Attempt) -> float:
    took = datetime.datetime.fromisoformat(attempt.ended_at) - datetime.datetime.fromisoformat(attempt.started_at)
    return took.total_seconds() / 3600


def _versions_of(steps: Iterable[PlannedStep]) -> dict[str, list[str]]:
    """Return output path -> the outputs of the same name beside it, its own included."""
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
    """Return the cost of the attempt in a file; None if the file does not state it."""
    try:
        if found is None:
            return None
        attempt = parse_attempt(file, found)
        return Estimate(_hours_of(attempt), describe_spec_resources(attempt.spec["resources"]))
    except (BadAttemptError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
