"""Estimates state the duration of earlier attempts, only for steps that run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plans.planning import experiment, plan_of
from tradewind.plans.estimates import Estimate, describe_spec_resources, format_hours, with_estimates
from tradewind.plans.plan import Plan
from tradewind.records.record import RecordState
from tradewind.serialization.spec import encode_resources
from tradewind.steps import Cpu, Gpu, Hosts, TpuSlice, on_airflow_worker, on_head_node


def plan() -> Plan:
    states = {"data": RecordState.FINISHED, "other": RecordState.AT_WORK}
    reads = {"data": "", "other": "", "tokens": "data", "train": "tokens other", "eval": "train"}
    return plan_of(experiment(reads), states, ["eval"])


def test_running_steps_have_estimates_and_plan_has_their_sum() -> None:
    path_of = {step.name: step.output_path for step in plan().steps}
    known = {
        **{name: Estimate(9, "v4-16") for name in ("data", "other", "train")},
        path_of["train"]: Estimate(2, "v4-16"),  # precedes that of the name
        "tokens": Estimate(0.5, "1 CPU"),
        "eval": Estimate(0.5, "v4-16"),
    }
    estimated = with_estimates(plan(), known)
    assert {step.name: step.estimate for step in estimated.steps if step.estimate} == {
        "tokens": "about 30 min on 1 CPU",
        "train": "about 2 h on v4-16",
        "eval": "about 30 min on v4-16",
    }
    assert estimated.estimate == "about 2.5 h on v4-16, 30 min on 1 CPU"


def test_sum_counts_each_version_once_and_names_gaps() -> None:
    once = plan()
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
