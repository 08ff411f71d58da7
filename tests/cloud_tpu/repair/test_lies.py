"""Repair with wrong API answers: stale, short or duplicate lists, lost answers, unknown states."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_tpu.cloud import AT_ONCE, BODY, World, queued
from tests.support.waiting import until
from tradewind.cloud_tpu.repair import actions as repair_actions
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.records import KEEP_S
from tradewind.cloud_tpu.repair.terms import RepairReport, RepairSettings, Scope
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud

WRITES = ("CreateNode", "DeleteNode", "CreateQueuedResource", "DeleteQueuedResource")


class LyingCloud(LocalTpuCloud):
    """A cloud that changes its answers before it sends them."""

    def __init__(self) -> None:
        super().__init__()
        self.twist: Callable[[Answer], Answer] = lambda answer: answer

    def answer(self, call: HttpRequest) -> Answer:
        return self.twist(super().answer(call))

    def twists(self, kind: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the JSON of every answer of this kind."""

        def twist(answer: Answer) -> Answer:
            if answer.kind != kind or answer.status != 200:
                return answer
            fields = json.loads(answer.body)
            change(fields)
            return replace(answer, body=json.dumps(fields).encode())

        self.twist = twist


class LyingWorld(World):
    cloud: LyingCloud


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LyingWorld]:
    cloud = LyingCloud()
    cloud.start()
    try:
        yield LyingWorld(cloud, tmp_path / "records")
    finally:
        cloud.service.lives.end_all()
        cloud.stop()


def until_well(repair: SliceRepair, world: World, passes: int = 30) -> RepairReport:
    for _ in range(passes):
        report = repair.run_once()
        if report.is_well:
            return report
        world.now += 1.0
    raise AssertionError(report.table())


def create_all(world: World, names: list[str]) -> None:
    for name in names:
        world.api.begin_create(name, BODY)
    until(lambda: [node.state for node in world.api.nodes()] == ["READY"] * len(names), "all slices to be READY")


def test_lost_deletion_response_does_not_delete_successor(world: LyingWorld) -> None:
    world.create("slice-a")
    world.preempt("slice-a")
    successors: list[str] = []

    def meanwhile(seconds: float) -> None:
        if not world.cloud.lost_answers and not successors:
            until(lambda: world.api.found("slice-a", is_queue=False) is None, "slice-a to be gone")
            world.create("slice-a")
            successors.append(world.api.node("slice-a").identity)
        time.sleep(min(seconds, 0.01))

    world.cloud.writes, world.cloud.lost_answers = frozenset({"DeleteNode"}), 1
    world.repair(api=world.new_api(sleep=meanwhile)).run_once()
    assert successors == [world.api.node("slice-a").identity]
    assert world.calls("DeleteNode") == ["DeleteNode slice-a"]


@pytest.mark.slow
def test_stale_list_does_not_delete_replaced_slice_again(world: LyingWorld) -> None:
    names = [f"slice-{number:02}" for number in range(20)]
    create_all(world, names)
    for name in names:
        world.preempt(name)
    old = [json.loads(json.dumps(one)) for one in _listed(world)]
    assert set(world.repair().run_once().done.values()) == {"replaced"}
    world.cloud.twists("ListNodes", lambda fields: fields.update(nodes=old))
    pauses = iter(range(5))
    world.repair(api=world.new_api(sleep=lambda seconds: [next(pauses)])).run_once()
    world.cloud.twist = lambda answer: answer
    assert len(world.calls("DeleteNode")) == 20
    assert until_well(world.repair(), world).is_well


def _listed(world: LyingWorld) -> list[dict[str, Any]]:
    call = HttpRequest("GET", f"/v2/{world.api.parent}/nodes", {"pageSize": "500"}, {}, b"")
    nodes: list[dict[str, Any]] = json.loads(world.cloud.answer(call).body)["nodes"]
    return nodes


@pytest.mark.parametrize("second_state", ["PREEMPTED", "READY"])
def test_a_node_that_a_list_tells_of_twice_is_one_node(world: LyingWorld, second_state: str) -> None:
    world.create("slice-a")
    state = "READY" if second_state == "PREEMPTED" else "PREEMPTED"
    world.set_state("slice-a", state)

    def twice(fields: dict[str, Any]) -> None:
        if fields.get("nodes"):
            fields["nodes"].append({**fields["nodes"][0], "state": second_state})

    world.cloud.twists("ListNodes", twice)
    world.hosts = lambda: {"slice-a": 2 if state == "READY" else 0}  # type: ignore[method-assign]
    report = world.repair().run_once()
    assert len(report.findings) == 1
    assert len(world.calls("DeleteNode")) == (1 if state == "PREEMPTED" else 0)


def test_working_slice_missing_from_list_keeps_queued_resource(world: LyingWorld) -> None:
    world.create("queue", queued("slice-a", "slice-b"))
    world.preempt("slice-a")  # the cloud also sets the queued resource to SUSPENDED
    world.cloud.twists("ListNodes", lambda fields: fields.update(nodes=[]))
    world.hosts = lambda: {"slice-b": 2}  # type: ignore[method-assign]
    report = world.repair().run_once()
    assert report.done == {} and "slice-b" in report.table()
    assert world.calls("DeleteQueuedResource") == []


def test_foreign_queued_resource_without_spec_is_tolerated(world: LyingWorld) -> None:
    world.create("slice-a")
    world.create("queue", queued("theirs", body={**BODY, "labels": {"cluster": "two"}}))
    world.preempt("slice-a")
    world.cloud.twists("ListQueuedResources", lambda fields: fields["queuedResources"][0].pop("tpu"))
    assert world.repair().run_once().done == {"slice-a": "replaced"}


@pytest.mark.parametrize("state", [97, "GONE_FISHING"])
def test_a_state_that_nobody_knows_is_waited_for(world: LyingWorld, state: int | str) -> None:
    world.create("slice-a")
    world.create("queue", queued("slice-b"))

    def unknown(fields: dict[str, Any]) -> None:
        for node in fields.get("nodes", []):
            node["state"] = state

    world.cloud.twists("ListNodes", unknown)
    world.hosts = dict  # type: ignore[method-assign]
    for _ in range(3):
        report = world.repair().run_once()
        assert report.done == {} and not report.is_well and report.table()
        world.now += 10_000.0
    assert world.calls("DeleteNode", "DeleteQueuedResource") == []


@pytest.mark.slow
def test_failing_queued_resource_leaves_others_their_limits(world: LyingWorld) -> None:
    world.create("a-queue", queued("slice-q"))
    world.create("slice-z")
    settings = replace(AT_ONCE, stock_out_pause_s=60.0, max_deletes_per_hour=10)
    world.lost_hosts["slice-q"] = 2

    def failed(fields: dict[str, Any]) -> None:
        for one in fields.get("queuedResources", []):
            one["state"] = {"state": "FAILED"}

    world.cloud.twists("ListQueuedResources", failed)
    for _ in range(60):
        world.repair(settings=settings).run_once()
        world.now += 15.0
    assert 2 <= len(world.calls("DeleteQueuedResource")) <= 6
    world.lost_hosts["slice-z"] = 1
    for _ in range(3):
        world.repair(settings=settings).run_once()
        world.now += 5.0
    assert world.calls("DeleteNode") == ["DeleteNode slice-z"]


def test_invalid_name_needs_user_and_delays_no_other_slice(world: LyingWorld) -> None:
    world.create("slice-a")
    world.preempt("slice-a")
    hostile = ["Slice_A", "../slice-a", "slice\na", "", "s" * 5000]
    report = world.repair(Scope(expected={"slice-a": BODY, **dict.fromkeys(hostile, BODY)})).run_once()
    assert report.done == {"slice-a": "replaced"}
    assert sorted(one.name for one in report.needs_attention) == sorted(hostile)
    assert len(report.table().splitlines()) == 1 + len(report.findings)


@pytest.mark.slow
def test_recreation_body_is_rewritten_when_deletion_is_retried(world: LyingWorld) -> None:
    world.create("slice-a")
    world.create("slice-b")
    world.lost_hosts["slice-a"] = 1
    world.repair().run_once()
    world.now += AT_ONCE.host_grace_s + 1.0
    world.cloud.service.refuse_next(100, "PERMISSION_DENIED", "Not now", "DeleteNode")
    world.repair().run_once()
    world.cloud.service.refuse_next(0, "PERMISSION_DENIED", "Not now", "DeleteNode")
    world.now += KEEP_S + 1.0
    world.cloud.service.state.supply.is_out = True
    assert "no capacity" in world.repair().run_once().done["slice-a"]
    world.cloud.service.state.supply.is_out = False
    world.lost_hosts.clear()
    world.now += AT_ONCE.max_stock_out_pause_s
    assert until_well(world.repair(), world).is_well
    assert sorted(node.name for node in world.api.nodes()) == ["slice-a", "slice-b"]


@pytest.mark.slow
def test_records_do_not_grow_while_a_deletion_is_refused(world: LyingWorld) -> None:
    world.create("slice-a")
    world.preempt("slice-a")
    world.cloud.service.refuse_next(10**6, "PERMISSION_DENIED", "Not now", "DeleteNode")
    for _ in range(30):
        world.repair(settings=RepairSettings()).run_once()
        world.now += 60.0
    files = list(world.folder.glob("*.json"))
    assert len(files) <= 4 and sum(len(json.loads(file.read_text())) for file in files) <= 12
    world.cloud.service.refuse_next(0, "PERMISSION_DENIED", "Not now", "DeleteNode")
    assert until_well(world.repair(), world).is_well
    world.now += KEEP_S + 1.0
    world.repair().run_once()
    assert [json.loads(file.read_text()) for file in world.folder.glob("*.json")] in ([], [{}])


@pytest.mark.slow
def test_nothing_is_deleted_while_another_repair_has_the_turn(
    world: LyingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("slice-a")
    world.preempt("slice-a")
    world.folder.mkdir()
    another = world.turn()
    assert another.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(repair_actions, "LOCK_TIMEOUT_S", 0.5)
        assert "another repair" in world.repair().run_once().done["slice-a"]
    assert world.calls("DeleteNode") == []
    another.release()
    assert world.repair().run_once().done == {"slice-a": "replaced"}


def test_nothing_is_deleted_by_a_look_that_is_long_over(world: LyingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("slice-a")
    world.preempt("slice-a")
    late = iter(range(0, 10**6, 100))
    monkeypatch.setattr(repair_actions, "boot_time", lambda: float(next(late)))
    assert "took too long" in world.repair().run_once().done["slice-a"]
    monkeypatch.undo()
    assert world.calls("DeleteNode") == []
    assert world.repair().run_once().done == {"slice-a": "replaced"}
