"""Each task finds its own line in the chunk that the plan names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.plans.planning import experiment, plan_of
from tradewind.plans.plan import CHUNK, Plan, chunk_key, chunks, planned_in
from tradewind.records.record import RecordState


def plan_with(steps: int) -> Plan:
    reads = {f"s{index}": f"s{index - 1}" if index else "" for index in range(steps)}
    return plan_of(experiment(reads), {"s0": RecordState.FINISHED}, list(reads))


def stored(plan: Plan) -> Mapping[str, Any]:
    return {key: json.loads(json.dumps(chunk)) for key, chunk in chunks(plan).items()}


@pytest.mark.slow
def test_every_task_finds_its_line_through_its_index() -> None:
    plan = plan_with(2 * CHUNK + 1)
    pieces = stored(plan)
    for index, step in enumerate(plan.steps):
        assert planned_in(pieces[chunk_key(index)], step.task_id) == step


def test_no_piece_is_longer_than_agreed_and_none_is_empty() -> None:
    for steps, sizes in [(1, [1]), (CHUNK, [CHUNK]), (CHUNK + 1, [CHUNK, 1])]:
        assert [len(piece["steps"]) for piece in chunks(plan_with(steps)).values()] == sizes


@pytest.mark.slow
def test_keys_are_distinct_and_say_what_they_hold() -> None:
    assert list(chunks(plan_with(3 * CHUNK))) == ["plan_0", "plan_1", "plan_2"]


def test_an_empty_plan_has_no_pieces() -> None:
    assert chunks(Plan("/p", ())) == {}


def test_a_task_that_the_plan_does_not_know_is_not_found() -> None:
    assert planned_in(stored(plan_with(3))["plan_0"], "later") is None
