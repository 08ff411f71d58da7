"""Repair with wrong API answers: stale, short or duplicate lists, lost answers, unknown states."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_tpu.cloud import AT_ONCE, BODY, TpuEnvironment, queued, serving
from tests.support.waiting import until
from tradewind.cloud_tpu.repair import actions as repair_actions
from tradewind.cloud_tpu.repair.records import KEEP_S
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud


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


class LyingEnvironment(TpuEnvironment):
    cloud: LyingCloud


@pytest.fixture
def env(tmp_path: Path) -> Iterator[LyingEnvironment]:
    with serving(LyingCloud()) as cloud:
        yield LyingEnvironment(cloud, tmp_path / "records")


def test_lost_deletion_response_does_not_delete_successor(env: LyingEnvironment) -> None:
    env.create_preempted("slice-a")
    successors: list[str] = []

    def meanwhile(seconds: float) -> None:
        if not env.cloud.lost_answers and not successors:
            until(lambda: env.api.find("slice-a", is_queue=False) is None, "slice-a to be gone")
            env.create("slice-a")
            successors.append(env.api.node("slice-a").identity)
        time.sleep(min(seconds, 0.01))

    env.cloud.writes, env.cloud.lost_answers = frozenset({"DeleteNode"}), 1
    env.repair(api=env.new_api(sleep=meanwhile)).run_once()
    assert successors == [env.api.node("slice-a").identity]
    assert env.calls("DeleteNode") == ["DeleteNode slice-a"]


@pytest.mark.slow
def test_stale_list_does_not_delete_replaced_slice_again(env: LyingEnvironment) -> None:
    names = [f"slice-{number:02}" for number in range(20)]
    env.create_preempted(*names)
    old: dict[str, Any] = {}
    env.cloud.twists("ListNodes", old.update)
    env.api.nodes()
    env.cloud.twist = lambda answer: answer
    assert set(env.repair().run_once().done.values()) == {"replaced"}
    env.cloud.twists("ListNodes", lambda fields: fields.update(old))
    pauses = iter(range(5))
    env.repair(api=env.new_api(sleep=lambda seconds: [next(pauses)])).run_once()
    env.cloud.twist = lambda answer: answer
    assert len(env.calls("DeleteNode")) == 20
    env.repair_until_well()


@pytest.mark.parametrize(("state", "second_state", "hosts"), [("READY", "PREEMPTED", 2), ("PREEMPTED", "READY", 0)])
def test_node_listed_twice_is_one_node(env: LyingEnvironment, state: str, second_state: str, hosts: int) -> None:
    env.create("slice-a")
    env.set_state("slice-a", state)

    def list_twice(fields: dict[str, Any]) -> None:
        if fields.get("nodes"):
            fields["nodes"].append({**fields["nodes"][0], "state": second_state})

    env.cloud.twists("ListNodes", list_twice)
    env.hosts = lambda: {"slice-a": hosts}  # type: ignore[method-assign]
    assert len(env.repair().run_once().findings) == 1
    assert env.calls("DeleteNode") == ([] if state == "READY" else ["DeleteNode slice-a"])


def test_working_slice_missing_from_list_keeps_queued_resource(env: LyingEnvironment) -> None:
    env.create("queue", queued("slice-a", "slice-b"))
    env.preempt("slice-a")  # the cloud also sets the queued resource to SUSPENDED
    env.cloud.twists("ListNodes", lambda fields: fields.update(nodes=[]))
    env.hosts = lambda: {"slice-b": 2}  # type: ignore[method-assign]
    report = env.repair().run_once()
    assert report.done == {} and "slice-b" in report.table()
    assert env.calls("DeleteQueuedResource") == []


def test_foreign_queued_resource_without_spec_is_tolerated(env: LyingEnvironment) -> None:
    env.create("slice-a")
    env.create("queue", queued("theirs", body={**BODY, "labels": {"cluster": "two"}}))
    env.preempt("slice-a")
    env.cloud.twists("ListQueuedResources", lambda fields: fields["queuedResources"][0].pop("tpu"))
    assert env.repair().run_once().done == {"slice-a": "replaced"}


@pytest.mark.parametrize("state", [97, "GONE_FISHING"])
def test_unknown_state_is_waited_for(env: LyingEnvironment, state: int | str) -> None:
    env.create("slice-a")
    env.create("queue", queued("slice-b"))

    def unknown(fields: dict[str, Any]) -> None:
        for node in fields.get("nodes", []):
            node["state"] = state

    env.cloud.twists("ListNodes", unknown)
    env.hosts = dict  # type: ignore[method-assign]
    for _ in range(3):
        report = env.repair().run_once()
        assert report.done == {} and not report.is_well and report.table()
        env.now += 10_000.0
    assert env.calls("DeleteNode", "DeleteQueuedResource") == []


@pytest.mark.slow
def test_failing_queued_resource_leaves_others_their_limits(env: LyingEnvironment) -> None:
    env.create("a-queue", queued("slice-q"))
    env.create("slice-z")
    settings = replace(AT_ONCE, stock_out_pause_s=60.0, max_deletes_per_hour=10)
    env.lost_hosts["slice-q"] = 2

    def failed(fields: dict[str, Any]) -> None:
        for one in fields.get("queuedResources", []):
            one["state"] = {"state": "FAILED"}

    env.cloud.twists("ListQueuedResources", failed)
    for _ in range(60):
        env.repair(settings=settings).run_once()
        env.now += 15.0
    assert 2 <= len(env.calls("DeleteQueuedResource")) <= 6
    env.lost_hosts["slice-z"] = 1
    for _ in range(3):
        env.repair(settings=settings).run_once()
        env.now += 5.0
    assert env.calls("DeleteNode") == ["DeleteNode slice-z"]


def test_invalid_name_needs_user_and_delays_no_other_slice(env: LyingEnvironment) -> None:
    env.create_preempted("slice-a")
    hostile = ["Slice_A", "../slice-a", "slice\na", "", "s" * 5000]
    report = env.repair(Scope(expected={"slice-a": BODY, **dict.fromkeys(hostile, BODY)})).run_once()
    assert report.done == {"slice-a": "replaced"}
    assert sorted(one.name for one in report.needs_attention) == sorted(hostile)
    assert len(report.table().splitlines()) == 1 + len(report.findings)


@pytest.mark.slow
def test_recreation_body_is_rewritten_when_deletion_is_retried(env: LyingEnvironment) -> None:
    env.create("slice-a")
    env.create("slice-b")
    env.lost_hosts["slice-a"] = 1
    env.repair().run_once()
    env.now += AT_ONCE.host_grace_s + 1.0
    env.cloud.service.refuse_next(100, "PERMISSION_DENIED", "Not now", "DeleteNode")
    env.repair().run_once()
    env.cloud.service.refuse_next(0, "PERMISSION_DENIED", "Not now", "DeleteNode")
    env.now += KEEP_S + 1.0
    env.cloud.service.state.supply.is_out = True
    assert "no capacity" in env.repair().run_once().done["slice-a"]
    env.cloud.service.state.supply.is_out = False
    env.lost_hosts.clear()
    env.now += AT_ONCE.max_stock_out_pause_s
    env.repair_until_well()
    assert sorted(node.name for node in env.api.nodes()) == ["slice-a", "slice-b"]


@pytest.mark.slow
def test_records_do_not_grow_while_a_deletion_is_refused(env: LyingEnvironment) -> None:
    env.create_preempted("slice-a")
    env.cloud.service.refuse_next(10**6, "PERMISSION_DENIED", "Not now", "DeleteNode")
    for _ in range(30):
        env.repair(settings=RepairSettings()).run_once()
        env.now += 60.0
    files = list(env.folder.glob("*.json"))
    assert len(files) <= 4 and sum(len(json.loads(file.read_text())) for file in files) <= 12
    env.cloud.service.refuse_next(0, "PERMISSION_DENIED", "Not now", "DeleteNode")
    env.repair_until_well()
    env.now += KEEP_S + 1.0
    env.repair().run_once()
    assert [json.loads(file.read_text()) for file in env.folder.glob("*.json")] in ([], [{}])


@pytest.mark.slow
def test_nothing_is_deleted_while_another_repair_has_the_lock(
    env: LyingEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.create_preempted("slice-a")
    env.folder.mkdir()
    another = env.lock()
    assert another.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(repair_actions, "LOCK_TIMEOUT_S", 0.5)
        assert "another repair" in env.repair().run_once().done["slice-a"]
    assert env.calls("DeleteNode") == []
    another.release()
    assert env.repair().run_once().done == {"slice-a": "replaced"}


def test_old_snapshot_deletes_nothing(env: LyingEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    env.create_preempted("slice-a")
    late = iter(range(0, 10**6, 100))
    monkeypatch.setattr(repair_actions, "boot_time", lambda: float(next(late)))
    assert "too long ago" in env.repair().run_once().done["slice-a"]
    monkeypatch.undo()
    assert env.calls("DeleteNode") == []
    assert env.repair().run_once().done == {"slice-a": "replaced"}
