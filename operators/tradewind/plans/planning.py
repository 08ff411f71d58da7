"""Make a plan from the current records: read, verify if requested, and explain them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from tradewind.plans.decisions import EVERYTHING, make_plan
from tradewind.plans.estimates import read_estimates, with_estimates
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.reasons import EarlierVersion, explain_steps
from tradewind.plans.selection import Selection
from tradewind.records.lease import Lease
from tradewind.records.manifests import BadManifestError, read_manifest, verify_output
from tradewind.records.record import Record, RecordState, read_records
from tradewind.steps import ResolvedStep
from tradewind.storage import Roots

MAX_CONCURRENT_CHECKS: Final = 4
MAX_CHANGED_INPUTS: Final = 20
"""Per step of a plan."""


@dataclass(frozen=True)
class Outputs:
    """State of the outputs in the store.

    Attributes:
        records: The record of each output path.
        faults: Output path → what is wrong, for results that differ from their manifests.
        uncompared: Results that could not be verified: Marin made them, without a manifest.
    """

    records: Mapping[str, Record]
    faults: Mapping[str, str] = field(default_factory=dict)
    uncompared: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for a user who requested a full check."""
        if not self.uncompared:
            return ()
        return (
            f"verify: {len(self.uncompared)} outputs that Marin's executor made have no manifest and were not "
            f"compared, such as {self.uncompared[0]}.",
        )


def read_outputs(output_paths: Sequence[str], *, verify: bool = False) -> Outputs:
    """Read the records; with ``verify``, compare every result with its manifest, file by file.

    A result that differs from its manifest counts as gone. A result of Marin's has no manifest: it is reused with a
    warning.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    records = read_records(output_paths)
    if not verify:
        return Outputs(records)
    finished = [(path, record) for path, record in records.items() if record.state is RecordState.FINISHED]
    results = [(path, record.lease) for path, record in finished if record.lease and not record.lease.written_by_marin]
    with ThreadPoolExecutor(MAX_CONCURRENT_CHECKS) as pool:
        found = zip(results, pool.map(lambda result: _fault(*result), results), strict=True)
        faults = {path: fault for (path, _), fault in found if fault is not None}
    uncompared = tuple(path for path, record in finished if record.lease is None or record.lease.written_by_marin)
    checked = {path: replace(record, is_damaged=path in faults) for path, record in records.items()}
    return Outputs(checked, faults, uncompared)


def plan_now(
    prefix: str,
    tasks: Iterable[tuple[str, ResolvedStep]],
    wanted: Container[str],
    outputs: Outputs,
    selection: Selection = EVERYTHING,
    *,
    roots: Roots | None = None,
) -> Plan:
    """Plan with these outputs, reasons and estimates; see ``make_plan``.

    Args:
        roots: Where paths that records name may be read; default: the prefix.
    """
    readable = roots or Roots.of([prefix])
    nearest: dict[str, EarlierVersion] = {}

    def explain(steps: Sequence[tuple[ResolvedStep, Record]]) -> dict[str, str]:
        explained = explain_steps(steps, roots=readable)
        nearest.update(explained.nearest)
        return {**explained.reasons, **outputs.faults}

    plan = make_plan(prefix, tasks, wanted, outputs.records, selection, explain)
    plan = replace(plan, steps=tuple(_with_origin(step, nearest.get(step.output_path)) for step in plan.steps))
    plan = replace(plan, warnings=(*plan.warnings, *outputs.warnings, *_left_damaged(plan, outputs.faults)))
    return with_estimates(plan, read_estimates(plan))


def _with_origin(step: PlannedStep, earlier: EarlierVersion | None) -> PlannedStep:
    """Add which version the step was compared with, and the inputs that caused the new one."""
    if earlier is None:
        return step
    causes = dict.fromkeys(change.step for change in earlier.changes if change.way)
    return replace(step, earlier=earlier.hash, changed_inputs=tuple(causes)[:MAX_CHANGED_INPUTS])


def _left_damaged(plan: Plan, faults: Mapping[str, str]) -> Iterator[str]:
    """Warn of a pruned step whose result is damaged: the table only says why it is pruned."""
    for step in plan.decided(Decision.PRUNED):
        if (fault := faults.get(step.output_path)) is not None:
            yield (
                f"verify: {step.name!r} {fault}; nothing that runs reads it, so it is not made again unless it is "
                "forced."
            )


def _fault(output_path: str, lease: Lease) -> str | None:
    try:
        manifest = read_manifest(output_path, lease.attempt)
    except BadManifestError as error:
        return f"ran, but {error}"
    if manifest is None:
        return "ran, manifest gone"
    problems = verify_output(output_path, manifest, lease.digest)
    if not problems:
        return None
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"ran, output damaged: {problems[0]}{more}"
