"""The table in the log of the plan task: first events first, one line per step, totals at the end."""

from __future__ import annotations

import dataclasses
import re

from tests.plans.planning import experiment, plan_of, planned_step
from tradewind.plans.estimates import Estimate, with_estimates
from tradewind.plans.plan import Decision, Plan
from tradewind.plans.selection import Selection
from tradewind.plans.table import BIG, WIDTH, plan_table
from tradewind.records.record import RecordState


def plan_with(*decisions: Decision) -> Plan:
    return Plan("gs://b/p", tuple(planned_step(index, decision) for index, decision in enumerate(decisions)))


def test_table_has_a_line_for_each_step_and_the_sum_below() -> None:
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
    rows = plan_table(plan_with(Decision.RUN, Decision.PRUNED, Decision.BLOCKED)).splitlines()
    starts = {row.index(word) for row, word in zip(rows, ["output", "s0-", "s1-", "s2-"], strict=False)}
    assert len(starts) == 1
    assert not any("stimate" in row for row in rows), "no column without estimates"


def test_output_outside_prefix_keeps_its_whole_path() -> None:
    elsewhere = dataclasses.replace(planned_step(1), output_path="gs://b/prefix/fixed")
    table = plan_table(Plan("gs://b/p", (elsewhere, planned_step(2))))
    assert "  gs://b/prefix/fixed" in table and "  s2-000002" in table


def test_reason_is_one_line_shortened_in_the_middle() -> None:
    long = planned_step(1, reason="differs from version `abc123`: " + "config.x 1 → 2, " * 40 + "the end")
    table = plan_table(Plan("gs://b/p", (long, planned_step(2, reason="failed before:\n  ValueError\tno"))))
    assert max(map(len, table.splitlines())) <= WIDTH and len(table.splitlines()) == 4
    assert "differs from version `abc123`: config.x" in table and "…" in table and "the end  " in table
    assert "failed before: ValueError no" in table


def test_big_plan_shows_unfinished_steps_and_counts_the_rest() -> None:
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


def test_plan_up_to_the_limit_shows_every_step() -> None:
    assert len(plan_table(plan_with(*[Decision.REUSE] * BIG)).splitlines()) == BIG + 2
    assert len(plan_table(plan_with(*[Decision.REUSE] * (BIG + 1))).splitlines()) == 3
    assert plan_table(plan_with()).splitlines()[-1].startswith("0 steps")
