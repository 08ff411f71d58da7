"""The table in the log of the plan task: first events first, one line per step, totals at the end."""

from __future__ import annotations

import dataclasses
import re

from tests.plans.planning import experiment, plan_of
from tradewind.plans.estimates import Estimate, with_estimates
from tradewind.plans.plan import Decision, Plan, PlannedStep
from tradewind.plans.selection import Selection
from tradewind.plans.table import BIG, WIDTH, plan_table
from tradewind.records.record import RecordState


def line(index: int, decision: Decision, reason: str = "never ran") -> PlannedStep:
    name, hash_ = f"s{index}", f"{index:06x}"
    return PlannedStep(name, name, hash_, f"gs://b/p/{name}-{hash_}", decision, reason)


def plan_with(*decisions: Decision) -> Plan:
    return Plan("gs://b/p", tuple(line(index, decision) for index, decision in enumerate(decisions)))


def test_the_table_has_a_line_for_each_step_and_the_sum_below() -> None:
    reads = {"raw": "", "tokens": "raw", "train": "tokens"}
    plan = plan_of(experiment(reads), {"raw": RecordState.FINISHED}, ["train"], Selection(force=("x",)))
    version = {step.name: step.hash for step in plan.steps}
    lines = plan_table(with_estimates(plan, {"train": Estimate(2.5, "v4-16")})).splitlines()
    made = "made 3 hours ago by run monday of nightly, attempt 2"
    assert [re.split(r"  +", row) for row in lines] == [
        ["decision", "step", "version", "reason", "estimate", "output below /p"],
        ["REUSE", "raw", version["raw"], made, f"raw-{version['raw']}"],
        ["RUN", "tokens", version["tokens"], "never ran", f"tokens-{version['tokens']}"],
        ["RUN", "train", version["train"], "never ran", "about 2.5 h on v4-16", f"train-{version['train']}"],
        ["3 steps: 2 RUN, 1 REUSE"],
        ["Estimate: about 2.5 h on v4-16; unknown for 1 of 2 steps that run"],
        ["Warning: force: 'x' matches no step."],
    ]


def test_columns_are_aligned() -> None:
    rows = plan_table(plan_with(Decision.RUN, Decision.PRUNED, Decision.BLOCKED)).splitlines()[:4]
    starts = {row.index(word) for row, word in zip(rows, ["output", "s0-", "s1-", "s2-"], strict=True)}
    assert len(starts) == 1


def test_without_estimates_there_is_no_column_for_them() -> None:
    assert "stimate" not in plan_table(plan_with(Decision.RUN))


def test_an_output_elsewhere_keeps_its_whole_path() -> None:
    elsewhere = dataclasses.replace(line(1, Decision.RUN), output_path="gs://b/prefix/fixed")
    assert "  gs://b/prefix/fixed" in plan_table(Plan("gs://b/p", (elsewhere,)))
    assert "  s1-000001" in plan_table(dataclasses.replace(plan_with(), steps=(line(1, Decision.RUN),)))


def test_a_long_reason_is_shortened_in_the_middle() -> None:
    reason = "differs from version `abc123`: " + "config.x 1 → 2, " * 40 + "the end"
    table = plan_table(Plan("gs://b/p", (line(1, Decision.RUN, reason), line(2, Decision.RUN))))
    assert max(map(len, table.splitlines())) <= WIDTH
    assert "differs from version `abc123`: config.x" in table
    assert "…" in table
    assert "the end  " in table


def test_a_reason_of_many_lines_stays_on_one() -> None:
    table = plan_table(Plan("gs://b/p", (line(1, Decision.RUN, "failed before:\n  ValueError\tno"),)))
    assert "failed before: ValueError no" in table
    assert len(table.splitlines()) == 3


def test_a_big_plan_shows_what_happens_and_counts_the_rest() -> None:
    idle = [Decision.REUSE] * BIG + [Decision.PRUNED] * 3
    plan = plan_with(*idle, Decision.RUN, Decision.REUSE, Decision.WAIT, Decision.BLOCKED, *idle)
    lines = plan_table(plan).splitlines()
    summary = f"… {BIG} reused and 3 pruned steps: see the Plan tab or XCom"
    assert [row if row.startswith("…") else row.split()[0] for row in lines] == [
        "decision",
        summary,
        "RUN",
        "REUSE",
        "WAIT",
        "BLOCKED",
        summary,
        str(len(plan.steps)),
    ]
    assert lines[-1] == f"{len(plan.steps)} steps: 1 RUN, {2 * BIG + 1} REUSE, 1 WAIT, 1 BLOCKED, 6 PRUNED"


def test_a_plan_that_is_not_big_shows_every_step() -> None:
    assert len(plan_table(plan_with(*[Decision.REUSE] * BIG)).splitlines()) == BIG + 2
    assert len(plan_table(plan_with(*[Decision.REUSE] * (BIG + 1))).splitlines()) == 3


def test_an_empty_plan_has_a_table_too() -> None:
    assert plan_table(Plan("/p", ())).splitlines()[-1].startswith("0 steps")
