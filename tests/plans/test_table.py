"""The table in the log of the plan task, a line per step with totals at the end; estimates by earlier attempts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from tests.plans.planning import experiment, plan_of, planned_step
from tradewind.plans.estimates import Estimate, describe_spec_resources, format_hours, with_estimates
from tradewind.plans.plan import Decision, Plan
from tradewind.plans.selection import Selection
from tradewind.plans.table import BIG, WIDTH, plan_table
from tradewind.records.record import RecordState
from tradewind.serialization.spec import encode_resources
from tradewind.steps import Cpu, Gpu, Hosts, TpuSlice, on_airflow_worker, on_head_node


def plan_with(*decisions: Decision) -> Plan:
    return Plan("gs://b/p", tuple(planned_step(index, decision) for index, decision in enumerate(decisions)))


def test_table_has_a_line_for_each_step_and_the_sum_below() -> None:
    reads = {"raw": "", "tokens": "raw", "train": "tokens"}
    plan = plan_of(experiment(reads), {"raw": RecordState.FINISHED}, ["train"], Selection(force=("x",)))
    version = {step.name: step.hash for step in plan.steps}
    lines = plan_table(with_estimates(plan, {"train": Estimate(2.5, "v4-16")})).splitlines()
    made = "made at 2026-09-21 11:13 UTC by run monday of nightly, attempt 2"
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
    assert len(plan_table(plan_with(*[Decision.REUSE] * BIG)).splitlines()) == BIG + 2
    assert len(plan_table(plan_with(*[Decision.REUSE] * (BIG + 1))).splitlines()) == 3
    assert plan_table(plan_with()).splitlines()[-1].startswith("0 steps")


# ---- estimates


def sweep() -> Plan:
    states = {"data": RecordState.FINISHED, "other": RecordState.AT_WORK}
    reads = {"data": "", "other": "", "tokens": "data", "train": "tokens other", "eval": "train"}
    return plan_of(experiment(reads), states, ["eval"])


def test_running_steps_have_estimates_and_plan_has_their_sum() -> None:
    path_of = {step.name: step.output_path for step in sweep().steps}
    known = {
        **{name: Estimate(9, "v4-16") for name in ("data", "other", "train")},
        path_of["train"]: Estimate(2, "v4-16"),  # precedes that of the name
        "tokens": Estimate(0.5, "1 CPU"),
        "eval": Estimate(0.5, "v4-16"),
    }
    estimated = with_estimates(sweep(), known)
    assert {step.name: step.estimate for step in estimated.steps if step.estimate} == {
        "tokens": "about 30 min on 1 CPU",
        "train": "about 2 h on v4-16",
        "eval": "about 30 min on v4-16",
    }
    assert estimated.estimate == "about 2.5 h on v4-16, 30 min on 1 CPU"


def test_sum_counts_each_version_once_and_names_gaps() -> None:
    once = sweep()
    twice = Plan(once.prefix, once.steps + tuple(step for step in once.steps if step.name == "train"))
    for each in (once, twice):
        estimated = with_estimates(each, {"train": Estimate(2, "v4-16")})
        assert estimated.estimate == "about 2 h on v4-16; unknown for 2 of 3 steps that run"
    assert with_estimates(once, {}) == once


@pytest.mark.parametrize(
    ("hours", "words"),
    [(2.5, "2.5 h"), (2.04, "2 h"), (9.94, "9.9 h"), (14.6, "15 h"), (0.1, "6 min"), (0.001, "3.6 s"), (0, "0 s")],
)
def test_hours_are_rounded_to_two_digits(hours: float, words: str) -> None:
    assert format_hours(hours) == words


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (TpuSlice("v4-16"), "v4-16"),
        (TpuSlice("v4-16", num_slices=2), "2 v4-16 slices"),
        (TpuSlice("v4-16", num_slices=(4, 2, 1)), "1 to 4 v4-16 slices"),
        (Hosts(1), "1 host of 1 CPU"),
        (Hosts(4, gpus=2, gpu_type="H100"), "4 hosts of 2 H100 GPUs"),
        (Cpu(), "1 CPU"),
        (Cpu(0.5), "0.5 CPUs"),
        (Gpu(), "1 GPU"),
        (Gpu(8, "H100"), "8 H100 GPUs"),
        (on_head_node(), "the head node"),
        (on_airflow_worker(), "the Airflow worker"),
    ],
)
def test_resources_are_described_in_words(resources: Any, words: str) -> None:
    assert describe_spec_resources(encode_resources(resources)) == words
