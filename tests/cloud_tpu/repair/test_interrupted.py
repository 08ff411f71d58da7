"""Interrupted repairs lose no slice: killed processes, concurrent repairs, failed requests."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.cloud_tpu.cloud import AT_ONCE, BODY, World
from tests.cloud_tpu.repair.watched import run_until_over
from tradewind.cloud_tpu.api import TpuApi, TpuOperation
from tradewind.cloud_tpu.errors import TpuApiError
from tradewind.cloud_tpu.repair.records import SliceRecord, SliceRecordError, SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairReport, RepairSettings, Scope


class DyingApi(TpuApi):
    """A client that raises just before or just after a call, like a killed process."""

    dies_before = ""
    dies_after = ""

    def begin_delete(self, *args: Any, **options: Any) -> TpuOperation | None:
        return self._around("delete", lambda: TpuApi.begin_delete(self, *args, **options))

    def begin_create(self, name: str, body: Any) -> TpuOperation:
        return self._around("create", lambda: TpuApi.begin_create(self, name, body))

    def _around(self, what: str, call: Any) -> Any:
        if self.dies_before == what:
            raise KeyboardInterrupt
        told = call()
        if self.dies_after == what:
            raise KeyboardInterrupt
        return told


@pytest.mark.parametrize(("before", "after"), [("delete", ""), ("", "delete"), ("create", ""), ("", "create")], ids=str)
def test_killed_repair_is_continued_by_next_pass(world: World, before: str, after: str) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    api = DyingApi("rehearsal", "us-central2-b", endpoint=world.cloud.url, poll_s=0.01)
    api.dies_before, api.dies_after = before, after
    with pytest.raises(KeyboardInterrupt):
        world.repair(api=api).run_once()
    assert run_until_over(world.repair(), world).is_well
    assert world.api.node("slice-a").body.items() >= BODY.items()
    assert len(world.calls("CreateNode")) == 2 and len(world.calls("DeleteNode")) == 1


@pytest.mark.slow
def test_two_repairs_at_once_replace_each_slice_once(world: World) -> None:
    names = [f"slice-{number}" for number in range(6)]
    for name in names:
        world.create(name)
        world.set_state(name, "PREEMPTED")
    bold = RepairSettings(start_grace_s=0.0, max_deletes_per_pass=10)
    ends: list[RepairReport] = []

    def work() -> None:
        ends.append(run_until_over(world.repair(api=world.new_api(), settings=bold), world))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [end.is_well for end in ends] == [True] * 3
    assert sorted(world.calls("DeleteNode")) == [f"DeleteNode {name}" for name in names]
    assert {node.state for node in world.api.nodes()} == {"READY"}


def test_slice_replaced_by_another_process_is_not_deleted(world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    repair = world.repair()

    class Slow(SliceRecords):
        def read(self) -> dict[str, SliceRecord]:
            found = super().read()
            world.api.delete_node("slice-a", world.api.node("slice-a").identity)
            world.create("slice-a")
            return found

    repair.records = Slow(str(world.folder))
    assert repair.run_once().done["slice-a"].startswith("left alone")
    assert world.api.node("slice-a").state == "READY"


def test_flaky_api_and_one_failing_slice_do_not_stop_others(world: World) -> None:
    world.create("slice-a")
    world.create("slice-b", {**BODY, "labels": {"cluster": "one", "which": "b"}})
    world.set_state("slice-a", "PREEMPTED")
    world.set_state("slice-b", "PREEMPTED")
    scope = Scope(expected={"slice-a": {"acceleratorType": "v4-17", "runtimeVersion": "x"}, "slice-b": None})
    world.cloud.service.fail_next(4, 503)
    report = world.repair(scope).run_once()
    assert report.done["slice-b"] == "replaced"
    assert "v4-17" in report.done["slice-a"]


def test_failed_listing_is_an_error_without_decisions(world: World) -> None:
    world.create("slice-a")
    world.cloud.service.fail_next(1, 403)
    with pytest.raises(TpuApiError, match="listing"):
        world.repair().run_once()


def test_a_damaged_record_is_named(world: World) -> None:
    world.folder.mkdir()
    (world.folder / "slice-a.json").write_text("{")
    with pytest.raises(SliceRecordError, match=r"slice-a\.json"):
        world.repair().run_once()


@pytest.mark.parametrize("is_done", [False, True], ids=["undone", "done all the same"])
@pytest.mark.parametrize("code", ["ABORTED", "INTERNAL", "CANCELLED", "ALREADY_EXISTS"])
def test_a_creation_whose_operation_fails_loses_no_slice(world: World, code: str, is_done: bool) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    world.cloud.service.fail_operations(1, "create", code, "An internal step failed", is_done=is_done)
    world.repair().run_once()
    world.now += AT_ONCE.stock_out_pause_s
    assert run_until_over(world.repair(), world).is_well
    assert [node.name for node in world.api.nodes()] == ["slice-a"]
    assert len(world.calls("DeleteNode")) == 1


def test_aborted_creation_is_retried_by_next_pass(world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    world.cloud.service.refuse_next(1, "ABORTED", "The resource is being changed", "CreateNode")
    assert "Aborted" in world.repair().run_once().done["slice-a"]
    assert run_until_over(world.repair(), world).is_well
    assert [node.name for node in world.api.nodes()] == ["slice-a"]


@pytest.mark.parametrize("code", ["ABORTED", "INTERNAL"])
@pytest.mark.parametrize("is_done", [False, True], ids=["undone", "done all the same"])
def test_a_deletion_whose_operation_fails_loses_no_slice(world: World, code: str, is_done: bool) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    world.cloud.service.fail_operations(1, "delete", code, "An internal step failed", is_done=is_done)
    world.repair().run_once()
    assert run_until_over(world.repair(), world).is_well
    assert [node.name for node in world.api.nodes()] == ["slice-a"]


def test_the_way_back_is_kept_until_the_new_slice_was_seen_ready(world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    world.repair().run_once()
    with world.cloud.service.state.changed:  # the node existed, and disappears before any pass sees it READY
        world.cloud.service.state.drop(world._held("slice-a"))
    assert run_until_over(world.repair(), world).is_well
    assert [node.name for node in world.api.nodes()] == ["slice-a"]


@pytest.mark.parametrize("kind", ["CreateNode", "DeleteNode"])
def test_lost_response_neither_loses_nor_duplicates_slice(world: World, kind: str) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    world.cloud.writes = frozenset({kind})
    world.cloud.lost_answers = 1
    world.repair().run_once()
    assert world.cloud.lost_answers == 0
    assert run_until_over(world.repair(), world).is_well
    assert world.calls("CreateNode", "DeleteNode") == ["CreateNode slice-a", "DeleteNode slice-a", "CreateNode slice-a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [("PERMISSION_DENIED", "Permission denied"), ("INVALID_ARGUMENT", "cidr_block is not yours to ask for")],
)
@pytest.mark.parametrize("by", ["call", "operation"])
def test_permanent_creation_refusal_stops_deletions(world: World, code: str, message: str, by: str) -> None:
    names = [f"slice-{number}" for number in range(5)]
    for name in names:
        world.create(name)
        world.set_state(name, "PREEMPTED")
    if by == "call":
        world.cloud.service.refuse_next(1000, code, message, "CreateNode")
    else:
        world.cloud.service.fail_operations(1000, "create", code, message)
    first = world.repair().run_once()
    assert [one.name for one in first.needs_attention] == ["slice-0"] and message in first.done["slice-0"]
    for _ in range(3):
        world.now += 3600.0
        report = world.repair().run_once()
    waiting = world.repair().run_once()
    assert waiting.is_over and [one.name for one in waiting.needs_attention] == names and message in waiting.table()
    assert world.calls("DeleteNode") == ["DeleteNode slice-0"]
    assert report.done.keys() == {"slice-0"}, "it is tried again, by itself"
    world.cloud.service.refuse_next(0, code, message, "CreateNode")
    world.cloud.service.fail_operations(0, "create", code, message)
    world.now += AT_ONCE.max_stock_out_pause_s
    for _ in range(4):
        world.repair().run_once()
    assert world.repair().run_once().is_well


def test_what_is_wanted_of_a_refused_slice_can_be_corrected(world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    world.repair(Scope(expected={"slice-a": {**BODY, "acceleratorType": "v4-17"}})).run_once()
    assert run_until_over(world.repair(Scope(expected={"slice-a": BODY})), world).is_well


def test_concurrent_repair_does_not_overwrite_records(world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    slow = world.repair()

    class Slow(SliceRecords):
        def read(self) -> dict[str, SliceRecord]:
            found = super().read()
            api = DyingApi("rehearsal", "us-central2-b", endpoint=world.cloud.url, poll_s=0.01)
            api.dies_after = "delete"
            with pytest.raises(KeyboardInterrupt):
                world.repair(api=api).run_once()
            return found

    slow.records = Slow(str(world.folder))
    assert slow.run_once().done["slice-a"].startswith("left alone")
    assert run_until_over(world.repair(), world).is_well
    assert [node.name for node in world.api.nodes()] == ["slice-a"]
