"""Repair of dead slices in the rehearsal's Cloud TPU, observed by its API calls."""

from __future__ import annotations

import json

import pytest

from tests.cloud_tpu.cloud import AT_ONCE, BODY, TpuEnvironment, queued
from tests.support.waiting import until
from tradewind.cloud_tpu.repair.records import KEEP_S, Deletion, SliceRecord, SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope

WRITES = ("CreateNode", "DeleteNode", "CreateQueuedResource", "DeleteQueuedResource")


def test_working_and_foreign_slices_are_untouched(env: TpuEnvironment) -> None:
    env.create("slice-a")
    env.create("queued", queued("slice-b", "slice-c"))
    env.create("theirs", {**BODY, "labels": {"cluster": "two"}})
    env.preempt("theirs")
    before = env.calls(*WRITES)
    report = env.repair().run_once()
    assert report.is_well and report.is_over and report.done == {}
    assert [row["hosts"] for row in report.rows()] == ["4/4", "2/2"]
    assert env.calls(*WRITES) == before
    assert not list(env.folder.glob("*"))


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "STOPPED", "UNKNOWN"])
def test_dead_node_is_recreated_with_its_body(env: TpuEnvironment, state: str) -> None:
    env.create("slice-a")
    identity = env.api.node("slice-a").identity
    env.set_state("slice-a", state)
    first = env.repair().run_once()
    assert first.done == {"slice-a": "replaced"}
    assert state in first.table()
    env.repair_until_well()
    node = env.api.node("slice-a")
    assert node.identity != identity and node.body.items() >= BODY.items()
    assert env.calls(*WRITES) == ["CreateNode slice-a", "DeleteNode slice-a", "CreateNode slice-a"]


def test_ready_node_with_dead_host_is_replaced_after_grace(env: TpuEnvironment) -> None:
    env.create("slice-a")
    env.create("slice-b")
    env.lost_hosts["slice-a"] = 1
    env.now += 1.0
    report = env.repair().run_once()
    assert "1 of 2 hosts" in report.table() and report.done == {}
    env.now += AT_ONCE.host_grace_s + 1.0
    assert env.repair().run_once().done == {"slice-a": "replaced"}
    env.lost_hosts.clear()
    env.repair_until_well()


def test_dead_worker_of_autoscaler_is_deleted_only(env: TpuEnvironment) -> None:
    env.create("ray-one-worker", {**BODY, "labels": {"cluster": "one", "ray-node-type": "worker"}})
    env.create("ray-one-head", {**BODY, "labels": {"cluster": "one", "ray-node-type": "head"}})
    env.preempt("ray-one-worker")
    env.preempt("ray-one-head")
    assert env.repair().run_once().done == {"ray-one-worker": "deleted"}
    env.repair_until_well()
    assert env.names() == ["ray-one-head"]


def test_reserved_capacity_is_never_deleted_but_named(env: TpuEnvironment) -> None:
    env.create("slice-a", {**BODY, "schedulingConfig": {"reserved": True}})
    env.create("slice-q", queued("slice-b", body={**BODY, "schedulingConfig": {}}, reservationName="ours"))
    env.preempt("slice-a")
    env.preempt("slice-b")
    report = env.repair().run_once()
    assert [one.name for one in report.needs_attention] == ["slice-a", "slice-q"]
    assert report.is_over and not report.is_well
    assert "never deleted" in report.table()
    assert env.calls("DeleteNode", "DeleteQueuedResource") == []


def test_queued_resource_is_kept_while_one_slice_works(env: TpuEnvironment) -> None:
    env.create("both", queued("slice-a", "slice-b"))
    env.preempt("slice-a")
    report = env.repair().run_once()
    assert report.done == {} and not report.is_over
    assert "slice-b" in report.table()
    env.set_state("slice-b", "PREEMPTED")
    env.repair_until_well()


def test_missing_slice_is_created_or_needs_user_without_body(env: TpuEnvironment) -> None:
    scope = Scope(expected={"slice-a": BODY, "slice-q": queued("slice-b"), "slice-c": None})
    first = env.repair(scope).run_once()
    assert first.done == {"slice-a": "created", "slice-q": "created"}
    until(lambda: env.repair(scope).run_once().is_over, "the repair to be over")
    assert [one.name for one in env.repair(scope).run_once().needs_attention] == ["slice-c"]
    assert {node.name for node in env.api.nodes()} == {"slice-a", "slice-b"}


def test_dry_run_reports_actions_and_changes_nothing(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a")
    report = env.repair(dry_run=True).run_once()
    assert report.done == {"slice-a": "would delete and create again"}
    assert env.api.node("slice-a").state == "PREEMPTED"
    assert not list(env.folder.glob("*"))


def test_stock_out_is_recorded_and_retried_for_every_slice(env: TpuEnvironment) -> None:
    env.create_preempted("slice-a", "slice-b", "slice-c")
    supply = env.cloud.service.state.supply
    supply.is_out = True
    done = env.repair().run_once().done
    assert len(done) == 3 and all("no capacity" in result for result in done.values())
    tried = [one for one in env.cloud.service.log() if one["call"] == "CreateNode"]
    waiting = env.repair().run_once()
    assert "no more capacity" in waiting.table() and waiting.done == {}
    assert [one for one in env.cloud.service.log() if one["call"] == "CreateNode"] == tried
    supply.is_out = False
    env.now += AT_ONCE.stock_out_pause_s
    env.repair_until_well()
    [notes] = env.folder.glob("notes.json")
    assert json.loads(notes.read_text()) == {}


@pytest.mark.slow
def test_deletions_respect_limits_per_pass_and_hour(env: TpuEnvironment) -> None:
    names = [f"slice-{number}" for number in range(6)]
    for name in names:
        env.create(name)
        env.set_state(name, "STOPPED")
    careful = RepairSettings(start_grace_s=0.0, max_deletes_per_pass=2, max_deletes_per_hour=3)
    assert [len(env.repair(settings=careful).run_once().done) for _ in range(4)] == [2, 1, 0, 0]
    assert "put off" in env.repair(settings=careful).run_once().table()
    env.now += 3601.0
    assert len(env.repair(settings=careful).run_once().done) == 2


def test_records_are_kept_in_any_store() -> None:
    records = SliceRecords("memory://slice-records/one")
    record, deletion = SliceRecord("slice-a", trouble="HOSTS", since=3.0), Deletion("slice-a", "1", 4.0, BODY)
    records.write_notes({"slice-a": record})
    records.write_deletions([deletion])
    assert SliceRecords("memory://slice-records/one").read() == {"slice-a": record.with_deletion(deletion)}
    records.write_notes({"slice-a": SliceRecord("slice-a")})
    records.read()
    records.settle(lambda one: one == deletion, 5.0)
    assert records.read() == {"slice-a": SliceRecord("slice-a", deleted_at=(4.0,))}
    records.settle(lambda one: False, 4.0 + KEEP_S)
    assert records.read() == {}


def test_queued_resource_may_wait_for_capacity(env: TpuEnvironment) -> None:
    env.create("queued", queued("slice-a"))
    env.preempt("slice-a")
    env.cloud.service.state.supply.is_out = True
    env.repair().run_once()
    until(lambda: env.api.queued_resource("queued").state == "WAITING_FOR_RESOURCES", "waiting")
    env.now += 10_000.0
    report = env.repair().run_once()
    assert report.done == {} and "waits for capacity" in report.table()
    with env.cloud.service.state.changed:
        env.cloud.service.state.supply.is_out = False
        env.cloud.service.state.changed.notify_all()
    env.repair_until_well(passes=3000)


@pytest.mark.slow
def test_slices_gone_at_google_are_replaced_beyond_limits(env: TpuEnvironment) -> None:
    names = [f"slice-{number:02}" for number in range(30)]
    env.create_preempted(*names)
    assert env.repair(settings=RepairSettings()).run_once().done == dict.fromkeys(names, "replaced")


def test_queued_resource_is_replaced_with_label_of_its_node(env: TpuEnvironment) -> None:
    env.create("queued", queued("slice-a", body={key: value for key, value in BODY.items() if key != "labels"}))
    with env.cloud.service.state.changed:  # users label existing nodes
        env._held("slice-a").node.labels = {"cluster": "one"}
    env.preempt("slice-a")
    assert env.repair().run_once().done == {"queued": "replaced"}
    env.repair_until_well()
    assert env.calls("DeleteNode", "DeleteQueuedResource") == ["DeleteQueuedResource queued"]
    node = env.api.node("slice-a")
    assert (node.queue, node.labels, node.state) == ("queued", {"cluster": "one"}, "READY")
