"""Plans of small experiments, given as names and states."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tradewind.plans.decisions import EVERYTHING, Explainer, make_plan
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.selection import Selection
from tradewind.records.lease import Lease, Phase
from tradewind.records.record import Record, RecordState, Status
from tradewind.steps import ExecutorStep, InputName, ResolvedExperiment, ResolvedStep, resolve, versioned

NOW = 1_790_000_000.0
BY = {"dag": "nightly", "run": "monday", "task": "t", "map_index": -1, "try": 1, "max_tries": 3}
PHASES = {
    RecordState.FINISHED: Phase.COMMITTED,
    RecordState.GONE: Phase.COMMITTED,
    RecordState.FAILED: Phase.FAILED,
    RecordState.STOPPED: Phase.STOPPED,
    RecordState.AT_WORK: Phase.RUNNING,
}
MARINS_RESULT = Record(status=Status.SUCCESS, has_output=True)


@dataclass(frozen=True)
class Config:
    value: Any
    reads: Any = ()


def lease_of(step: ResolvedStep, phase: Phase, **fields: Any) -> Lease:
    version = hashlib.md5(step.version_json.encode()).hexdigest()
    return Lease(
        "worker", NOW - 3 * 3600, phase, **{"attempt": 2, "job": "job-2", "by": BY, "version": version} | fields
    )


def record_of(step: ResolvedStep, state: RecordState) -> Record:
    """Return the record of a step in this state."""
    if state is RecordState.NONE:
        return Record()
    if state is RecordState.UNREADABLE:
        return Record(lease=Lease.from_json("{"))
    record = Record(lease=lease_of(step, PHASES[state]), has_output=state is RecordState.FINISHED)
    assert record.state is state
    return record


def experiment(reads: Mapping[str, str], roots: Sequence[str] | None = None) -> ResolvedExperiment:
    """Build steps by name, each with the names of the steps that it reads.

    ``~`` before a name makes a reference nonblocking; ``?`` marks a step that is read even if it failed.
    """
    steps: dict[str, ExecutorStep] = {}
    for name, inputs in reads.items():
        references: list[ExecutorStep | InputName] = []
        for each in inputs.split():
            step = steps[each.lstrip("~?")]
            references.append({"~": step.nonblocking(), "?": step.even_if_failed()}.get(each[0], step))
        steps[name] = ExecutorStep(name, None, Config(versioned(name), references))
    return resolve([steps[name] for name in roots or reads], "/p")


def plan_of(
    resolved: ResolvedExperiment,
    states: Mapping[str, RecordState],
    wanted: Sequence[str],
    selection: Selection = EVERYTHING,
    explain: Explainer | None = None,
) -> Plan:
    """Return the plan for these states, by name; a step without a state never ran. Task ids are names."""
    records = {step.output_path: record_of(step, states.get(step.name, RecordState.NONE)) for step in resolved.steps}
    tasks = [(step.name, step) for step in resolved.steps]
    return make_plan("/p", tasks, wanted, records, selection, explain)


def planned_step(index: int, decision: Decision = Decision.RUN, reason: str = "never ran") -> PlannedStep:
    name, hash_ = f"s{index}", f"{index:06x}"
    return PlannedStep(name, name, hash_, f"gs://b/p/{name}-{hash_}", decision, reason)


def decisions(plan: Plan) -> dict[str, str]:
    """Return the decision for each step name."""
    return {step.name: step.decision.value for step in plan.steps}


def reasons(plan: Plan, decision: Decision | None = None) -> dict[str, str]:
    """Return the reason for each step name."""
    return {step.name: step.reason for step in plan.steps if decision in (None, step.decision)}
