"""Interrupted repairs lose no slice: killed processes, concurrent repairs, failed requests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cloud_tpu.cloud import AT_ONCE, BODY, TpuEnvironment
from tradewind.cloud_tpu.errors import TpuApiError
from tradewind.cloud_tpu.repair.records import SliceRecord, SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope


class SlowRecords(SliceRecords):
    """Records of a repair that is slow: ``meanwhile`` happens after it has read them."""

    def __init__(self, env: TpuEnvironment, meanwhile: Callable[[], None]) -> None:
        super().__init__(str(env.folder))
        self._meanwhile = meanwhile

    def read(self) -> dict[str, SliceRecord]:
        found = super().read()
        self._meanwhile()
        return found


@pytest.mark.parametrize("lives", [1, 2, 3, 4], ids=["delete", "after delete", "create", "after create"])
def test_killed_repair_is_continued_by_next_pass(env: TpuEnvironment, lives: int) -> None:
    env.create_preempted("slice-a")
    with pytest.raises(KeyboardInterrupt):
        env.repair(api=env.mortal_api(lives)).run_once()
    env.repair_until_well()
    assert env.api.node("slice-a").body.items() >= BODY.items()
    assert len(env.calls("CreateNode")) == 2 and len(env.calls("DeleteNode")) == 1


@pytest.mark.slow
def test_two_repairs_at_once_replace_each_slice_once(env: TpuEnvironment) -> None:
    names = [f"slice-{number}" for number in range(6)]
    env.create_preempted(*names)
    bold = RepairSettings(start_grace_s=0.0, max_deletes_per_pass=10)
    with ThreadPoolExecutor(3) as pool:
        repairs = [env.repair(api=env.new_api(), settings=bold) for _ in range(3)]
        list(pool.map(env.repair_until_well, repairs))
    assert sorted(env.calls("DeleteNode")) == [f"DeleteNode {name}" for name in names]
    assert {node.state for node in env.api.nodes()} == {"READY"}


def test_slice_replaced_by_another_process_is_not_deleted(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")

    def replace() -> None:
        env.api.delete_node("slice-a", env.api.node("slice-a").identity)
        env.create("slice-a")

    repair = env.repair()
    repair.records = SlowRecords(env, replace)
    assert repair.run_once().done["slice-a"].startswith("left alone")
    assert env.api.node("slice-a").state == "READY"


def test_flaky_api_and_one_failing_slice_do_not_stop_others(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a", "slice-b")
    scope = Scope(expected={"slice-a": {"acceleratorType": "v4-17", "runtimeVersion": "x"}, "slice-b": None})
    env.cloud.service.fail_next(4, 503)
    report = env.repair(scope).run_once()
    assert report.done["slice-b"] == "replaced"
    assert "v4-17" in report.done["slice-a"]


def test_failed_listing_is_an_error_without_decisions(env: TpuEnvironment) -> None:
    env.create("slice-a")
    env.cloud.service.fail_next(1, 403)
    with pytest.raises(TpuApiError, match="listing"):
        env.repair().run_once()


@pytest.mark.parametrize("is_done", [False, True], ids=["undone", "done all the same"])
@pytest.mark.parametrize(
    ("verb", "code"),
    [("create", code) for code in ("ABORTED", "INTERNAL", "CANCELLED", "ALREADY_EXISTS")]
    + [("delete", code) for code in ("ABORTED", "INTERNAL")],
)
def test_failed_operation_loses_no_slice(env: TpuEnvironment, verb: str, code: str, is_done: bool) -> None:
    env.create_preempted("slice-a")
    env.cloud.service.fail_operations(1, verb, code, "An internal step failed", is_done=is_done)
    env.repair().run_once()
    env.now += AT_ONCE.stock_out_pause_s
    env.repair_until_well()
    assert env.names() == ["slice-a"]
    assert verb == "delete" or len(env.calls("DeleteNode")) == 1


def test_aborted_creation_is_retried_by_next_pass(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")
    env.cloud.service.refuse_next(1, "ABORTED", "The resource is being changed", "CreateNode")
    assert "Aborted" in env.repair().run_once().done["slice-a"]
    env.repair_until_well()
    assert env.names() == ["slice-a"]


def test_recreation_body_is_kept_until_slice_was_ready(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")
    env.repair().run_once()
    with env.cloud.service.state.changed:  # the node existed, and disappears before any pass sees it READY
        env.cloud.service.state.drop(env._held("slice-a"))
    env.repair_until_well()
    assert env.names() == ["slice-a"]


@pytest.mark.parametrize("kind", ["CreateNode", "DeleteNode"])
def test_lost_response_neither_loses_nor_duplicates_slice(env: TpuEnvironment, kind: str) -> None:
    env.create_preempted("slice-a")
    env.cloud.writes = frozenset({kind})
    env.cloud.lost_answers = 1
    env.repair().run_once()
    assert env.cloud.lost_answers == 0
    env.repair_until_well()
    assert env.calls("CreateNode", "DeleteNode") == ["CreateNode slice-a", "DeleteNode slice-a", "CreateNode slice-a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [("PERMISSION_DENIED", "Permission denied"), ("INVALID_ARGUMENT", "cidr_block is not yours to ask for")],
)
@pytest.mark.parametrize("by", ["call", "operation"])
def test_permanent_creation_refusal_stops_deletions(env: TpuEnvironment, code: str, message: str, by: str) -> None:
    names = [f"slice-{number}" for number in range(5)]
    env.create_preempted(*names)
    if by == "call":
        env.cloud.service.refuse_next(1000, code, message, "CreateNode")
    else:
        env.cloud.service.fail_operations(1000, "create", code, message)
    first = env.repair().run_once()
    assert [one.name for one in first.needs_attention] == ["slice-0"] and message in first.done["slice-0"]
    for _ in range(3):
        env.now += 3600.0
        report = env.repair().run_once()
    waiting = env.repair().run_once()
    assert waiting.is_over and [one.name for one in waiting.needs_attention] == names and message in waiting.table()
    assert env.calls("DeleteNode") == ["DeleteNode slice-0"]
    assert report.done.keys() == {"slice-0"}, "it is tried again, by itself"
    env.cloud.service.refuse_next(0, code, message, "CreateNode")
    env.cloud.service.fail_operations(0, "create", code, message)
    env.now += AT_ONCE.max_stock_out_pause_s
    for _ in range(4):
        env.repair().run_once()
    assert env.repair().run_once().is_well


def test_body_of_refused_slice_can_be_corrected(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")
    env.repair(Scope(expected={"slice-a": {**BODY, "acceleratorType": "v4-17"}})).run_once()
    env.repair_until_well(env.repair(Scope(expected={"slice-a": BODY})))


def test_concurrent_repair_does_not_overwrite_records(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")

    def delete_and_die() -> None:
        with pytest.raises(KeyboardInterrupt):
            env.repair(api=env.mortal_api(2)).run_once()

    repair = env.repair()
    repair.records = SlowRecords(env, delete_and_die)
    assert repair.run_once().done["slice-a"].startswith("left alone")
    env.repair_until_well()
    assert env.names() == ["slice-a"]
