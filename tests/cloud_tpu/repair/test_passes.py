"""Repair of dead slices in the rehearsal's Cloud TPU, observed by its API calls."""

from __future__ import annotations

import json

import pytest

from tests.cloud_tpu.cloud import AT_ONCE, BODY, World, queued
from tests.cloud_tpu.repair.watched import WRITES, run_until_over
from tests.support.waiting import until
from tradewind.cloud_tpu.repair.records import KEEP_S, Deletion, SliceRecord, SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope


def test_working_slices_are_untouched_and_pass_ends_at_once(world: World) -> None:
    world.create("slice-a")
    world.create("queued", queued("slice-b", "slice-c"))
    before = world.calls(*WRITES)
    report = world.repair().run_once()
    assert report.is_well and report.is_over and report.done == {}
    assert [row["hosts"] for row in report.rows()] == ["4/4", "2/2"]
    assert world.calls(*WRITES) == before
    assert not list(world.folder.glob("*"))


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "STOPPED", "UNKNOWN"])
def test_a_dead_node_is_deleted_and_created_again_as_it_was(world: World, state: str) -> None:
    world.create("slice-a")
    identity = world.api.node("slice-a").identity
    world.set_state("slice-a", state)
    first = world.repair().run_once()
    assert first.done == {"slice-a": "replaced"}
    assert state in first.table()
    assert run_until_over(world.repair(), world).is_well
    node = world.api.node("slice-a")
    assert node.identity != identity and node.body.items() >= BODY.items()
    assert world.calls(*WRITES) == ["CreateNode slice-a", "DeleteNode slice-a", "CreateNode slice-a"]


def test_suspended_queued_resource_is_replaced_with_its_node(world: World) -> None:
    world.create("queued", queued("slice-a"))
    world.preempt("slice-a")
    assert run_until_over(world.repair(), world).is_well
    assert world.calls("DeleteQueuedResource", "DeleteNode") == ["DeleteQueuedResource queued"]
    assert world.api.node("slice-a").state == "READY"


def test_ready_node_with_dead_host_is_replaced_after_grace(world: World) -> None:
    world.create("slice-a")
    world.create("slice-b")
    world.lost_hosts["slice-a"] = 1
    world.now += 1.0
    report = world.repair().run_once()
    assert "1 of 2 hosts" in report.table() and report.done == {}
    world.now += AT_ONCE.host_grace_s + 1.0
    assert world.repair().run_once().done == {"slice-a": "replaced"}
    world.lost_hosts.clear()
    assert run_until_over(world.repair(), world).is_well


def test_a_node_that_never_registered_is_given_time_to_start(world: World) -> None:
    world.create("slice-a")
    world.create("slice-b")
    world.lost_hosts["slice-a"] = 2
    slow = RepairSettings(start_grace_s=600.0, host_grace_s=3.0)
    for _ in range(3):
        assert world.repair(settings=slow).run_once().done == {}
        world.now += 100.0
    world.now += 600.0
    assert world.repair(settings=slow).run_once().done == {"slice-a": "replaced"}


def test_what_ray_s_autoscaler_left_behind_is_deleted_only(world: World) -> None:
    world.create("ray-one-worker", {**BODY, "labels": {"cluster": "one", "ray-node-type": "worker"}})
    world.create("ray-one-head", {**BODY, "labels": {"cluster": "one", "ray-node-type": "head"}})
    world.set_state("ray-one-worker", "PREEMPTED")
    world.set_state("ray-one-head", "PREEMPTED")
    assert world.repair().run_once().done == {"ray-one-worker": "deleted"}
    assert run_until_over(world.repair(), world).is_well
    assert [node.name for node in world.api.nodes()] == ["ray-one-head"]


def test_reserved_capacity_is_never_deleted_but_named(world: World) -> None:
    world.create("slice-a", {**BODY, "schedulingConfig": {"reserved": True}})
    world.create("slice-q", queued("slice-b", body={**BODY, "schedulingConfig": {}}, reservationName="ours"))
    world.preempt("slice-a")
    world.preempt("slice-b")
    report = world.repair().run_once()
    assert [one.name for one in report.needs_attention] == ["slice-a", "slice-q"]
    assert report.is_over and not report.is_well
    assert "never deleted" in report.table()
    assert world.calls("DeleteNode", "DeleteQueuedResource") == []


def test_what_belongs_to_others_is_not_even_judged(world: World) -> None:
    world.create("theirs", {**BODY, "labels": {"cluster": "two"}})
    world.set_state("theirs", "PREEMPTED")
    report = world.repair().run_once()
    assert report.findings == [] and report.is_well


def test_queued_resource_is_kept_while_one_slice_works(world: World) -> None:
    world.create("both", queued("slice-a", "slice-b"))
    world.preempt("slice-a")
    report = world.repair().run_once()
    assert report.done == {} and not report.is_over
    assert "slice-b" in report.table()
    world.set_state("slice-b", "PREEMPTED")
    assert run_until_over(world.repair(), world).is_well


def test_missing_slice_is_created_or_needs_user_without_body(world: World) -> None:
    scope = Scope(expected={"slice-a": BODY, "slice-q": queued("slice-b"), "slice-c": None})
    first = world.repair(scope).run_once()
    assert first.done == {"slice-a": "created", "slice-q": "created"}
    report = run_until_over(world.repair(scope), world)
    assert [one.name for one in report.needs_attention] == ["slice-c"]
    assert {node.name for node in world.api.nodes()} == {"slice-a", "slice-b"}


def test_a_dry_run_says_what_it_would_do_and_changes_nothing(world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    report = world.repair(dry_run=True).run_once()
    assert report.done == {"slice-a": "would delete and create again"}
    assert world.api.node("slice-a").state == "PREEMPTED"
    assert not list(world.folder.glob("*"))


def test_a_stock_out_is_remembered_waited_for_and_overcome(world: World) -> None:
    world.create("slice-a")
    world.set_state("slice-a", "PREEMPTED")
    supply = world.cloud.service.state.supply
    supply.is_out = True
    assert "no capacity" in world.repair().run_once().done["slice-a"]
    creations = len([one for one in world.cloud.service.log() if one["call"] == "CreateNode"])
    waiting = world.repair().run_once()
    assert "no more capacity" in waiting.table() and waiting.done == {}
    assert len([one for one in world.cloud.service.log() if one["call"] == "CreateNode"]) == creations
    supply.is_out = False
    world.now += AT_ONCE.stock_out_pause_s
    assert run_until_over(world.repair(), world).is_well
    [notes] = world.folder.glob("notes.json")
    assert json.loads(notes.read_text()) == {}


@pytest.mark.slow
def test_deletions_respect_limits_per_pass_and_hour(world: World) -> None:
    names = [f"slice-{number}" for number in range(6)]
    for name in names:
        world.create(name)
        world.set_state(name, "STOPPED")
    careful = RepairSettings(start_grace_s=0.0, max_deletes_per_pass=2, max_deletes_per_hour=3)
    assert [len(world.repair(settings=careful).run_once().done) for _ in range(4)] == [2, 1, 0, 0]
    assert "put off" in world.repair(settings=careful).run_once().table()
    world.now += 3601.0
    assert len(world.repair(settings=careful).run_once().done) == 2


def test_only_google_dead_slices_are_replaced_without_ray_answer(world: World) -> None:
    for name in ("slice-a", "slice-b", "slice-c"):
        world.create(name)
    world.set_state("slice-a", "PREEMPTED")
    world.set_state("slice-b", "UNKNOWN")
    world.ray_answers = False
    assert world.repair().run_once().done == {"slice-a": "replaced"}
    world.now += 10_000.0
    assert world.repair().run_once().done == {}


def test_records_are_kept_in_any_store() -> None:
    records = SliceRecords("memory://slice-records/one")
    record, deletion = SliceRecord("slice-a", trouble="HOSTS", since=3.0), Deletion("slice-a", "1", 4.0, BODY)
    records.write_notes({"slice-a": record})
    records.write_deletions([deletion])
    assert SliceRecords("memory://slice-records/one").read() == {"slice-a": record.deleted(deletion)}
    records.write_notes({"slice-a": SliceRecord("slice-a")})
    records.read()
    records.settle(lambda one: one == deletion, 5.0)
    assert records.read() == {"slice-a": SliceRecord("slice-a", deleted_at=(4.0,))}
    records.settle(lambda one: False, 4.0 + KEEP_S)
    assert records.read() == {}


def test_a_queued_resource_that_waits_for_capacity_is_waited_for(world: World) -> None:
    world.create("queued", queued("slice-a"))
    world.preempt("slice-a")
    world.cloud.service.state.supply.is_out = True
    world.repair().run_once()
    until(lambda: world.api.queued_resource("queued").state == "WAITING_FOR_RESOURCES", "waiting")
    world.now += 10_000.0
    report = world.repair().run_once()
    assert report.done == {} and "waits for capacity" in report.table()
    with world.cloud.service.state.changed:
        world.cloud.service.state.supply.is_out = False
        world.cloud.service.state.changed.notify_all()
    assert run_until_over(world.repair(), world, passes=3000).is_well


@pytest.mark.slow
def test_a_stock_out_of_one_slice_does_not_keep_the_others(world: World) -> None:
    for name in ("slice-a", "slice-b", "slice-c"):
        world.create(name)
        world.set_state(name, "PREEMPTED")
    world.cloud.service.state.supply.capacity["v4-16"] = 0
    done = world.repair().run_once().done
    assert len(done) == 3 and all("no capacity" in words for words in done.values())
    world.cloud.service.state.supply.capacity.clear()
    world.now += AT_ONCE.stock_out_pause_s
    assert run_until_over(world.repair(), world).is_well


@pytest.mark.slow
def test_slices_gone_at_google_are_replaced_beyond_limits(world: World) -> None:
    names = [f"slice-{number:02}" for number in range(30)]
    for name in names:
        world.api.begin_create(name, BODY)
    until(lambda: len([node for node in world.api.nodes() if node.state == "READY"]) == 30, "all slices")
    for name in names:
        world.set_state(name, "PREEMPTED")
    assert world.repair(settings=RepairSettings()).run_once().done == dict.fromkeys(names, "replaced")


def label(world: World, name: str, labels: dict[str, str]) -> None:
    """Label an existing node, as users do."""
    with world.cloud.service.state.changed:
        world._held(name).node.labels = labels


UNLABELLED = {key: value for key, value in BODY.items() if key != "labels"}


def test_labelled_node_keeps_label_when_queue_is_replaced(
    world: World,
) -> None:
    world.create("queued", queued("slice-a", body=UNLABELLED))
    label(world, "slice-a", {"cluster": "one"})
    world.preempt("slice-a")
    assert world.repair().run_once().done == {"queued": "replaced"}
    assert run_until_over(world.repair(), world).is_well
    assert world.calls("DeleteNode", "DeleteQueuedResource") == ["DeleteQueuedResource queued"]
    assert (world.api.node("slice-a").queue, world.api.node("slice-a").labels) == ("queued", {"cluster": "one"})


def test_queued_resource_with_foreign_slice_needs_user(world: World) -> None:
    world.create("queued", queued("slice-a", "theirs", body=UNLABELLED))
    label(world, "slice-a", {"cluster": "one"})
    world.preempt("slice-a")
    world.set_state("theirs", "PREEMPTED")
    report = world.repair().run_once()
    assert report.done == {} and [one.name for one in report.needs_attention] == ["queued"]
    assert "theirs" in report.table()


def test_node_of_replaced_queued_resource_is_not_a_bare_node(world: World) -> None:
    world.create("queued", queued("slice-a"))
    world.preempt("slice-a")
    with world.cloud.service.state.changed:
        world.cloud.service.state.queued.clear()
    assert world.repair().run_once().done == {}
    assert world.calls("DeleteNode") == []
