"""The overview of the fleet: each fact by itself, none of a dead service, and the alarms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.fleet.clouds import PROJECT, ZONE, ZONE_PATH, add_head, running_google
from tests.fleet.fleets import write_fleet
from tests.fleet.lifecycle.fleet_environment import create_slice
from tests.fleet.watched import WatchedHead
from tests.support.google import LocalGoogle
from tradewind.cloud_tpu.api import TpuApi
from tradewind.fleet.cloud.token_secret import SecretVersion
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.inventory import NodeLine
from tradewind.fleet.lock import ClusterLock
from tradewind.fleet.overview import (
    MAX_JOBS,
    READ_ERRORS,
    CloudOverview,
    ClusterHealth,
    ClusterOverview,
    FleetWatch,
    LockOverview,
    RayOverview,
    ResourceLine,
    ResourceUse,
    SlicePoolState,
    TokenOverview,
    alarms_of,
    poll_head,
    ray_overview,
    token_overview,
)
from tradewind.fleet.stalled_steps import StalledStep
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.shared_reads import SharedReads
from tradewind.storage import NO_ROOTS

SECRET = f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN"
TOKEN = "the-token-that-nobody-sees-0123456789"
OTHER = "  there: {zone: us-east5-b, generation: v5p, bucket: bucket}\n"


@pytest.fixture(scope="module")
def google() -> Iterator[LocalGoogle]:
    """A Google Cloud without the zone of the cluster ``there``."""
    with running_google("COMPUTE", "TPU", "SECRET_MANAGER") as google:
        google.secrets.put(SECRET, TOKEN)
        add_head(google)
        add_head(google, "gone")
        api = TpuApi(PROJECT, ZONE, poll_s=0.01)
        for name in ("ray-here-1", "ray-here-2", "ray-here-3"):
            create_slice(api, name)
        yield google


@pytest.fixture(scope="module")
def head() -> Iterator[WatchedHead]:
    """The head of the cluster ``here``; two of its three slices are in Ray."""
    head = WatchedHead()
    head.slices = {"ray-here-1": 1, "ray-here-2": 1}
    task = {"airflow_dag": "nightly", "airflow_run": "r1", "airflow_task": "train", "airflow_waits": "yes"}
    now_ms = int(time.time() * 1000)
    head.has("of-a-task", "RUNNING", metadata=task | {"step": "train@1", "output_path": "/x"}, start_time=now_ms - 9000)
    head.has("of-ada", "PENDING", metadata={"user": "ada\x1b[31m"}, start_time=now_ms)
    head.has("ended", "SUCCEEDED")
    wait = {"job_id": "01", "required_resources": {"TPU": 4.0}, "creation_time_ms": now_ms, "type": "NORMAL_TASK"}
    head.waiting = [wait, wait, wait | {"job_id": "07"}]
    head.drivers = {"01": "of-a-task"}
    head.start()
    yield head
    head.stop()


@pytest.fixture(scope="module")
def fleet(cloud: LocalCloudStorage, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Two clusters, whose locks are in the local Cloud Storage."""
    more = "min_workers: 2\nslices: {v4-16: {min: 1}}\n"
    file = write_fleet(tmp_path_factory.mktemp("fleet"), more)
    file.write_text(file.read_text().replace("my-bucket", "bucket") + OTHER)
    return load_fleet(file)


@pytest.fixture(scope="module")
def seen(google: LocalGoogle, head: WatchedHead, fleet: Fleet) -> dict[str, ClusterOverview]:
    """What a viewer sees of both clusters."""

    def connect(cluster: FleetCluster) -> RayCluster:
        return RayCluster(cluster.name, head.url if cluster.name == "here" else "http://127.0.0.1:9")

    with ClusterLock.of(fleet.cluster("here")).take("restart", "restarting Ray", holder="ada@laptop") as lock:
        watch = FleetWatch(connect, lambda: NO_ROOTS, SharedReads(ttl_s=1e9, wait_s=60, known_errors=READ_ERRORS))
        found = {one.name: one for one in watch.overview(fleet)}
        assert [orphan.cluster for orphan in watch.orphans(fleet)] == ["gone"]
        lock.finish()
    return found


def test_cluster_shows_slices_by_type_and_state(seen: dict[str, ClusterOverview]) -> None:
    cloud = seen["here"].cloud
    assert cloud is not None and cloud.state == "its head was set up"
    assert list(cloud.pools) == [
        SlicePoolState("v4-8", 2, cloud.pools[0].maximum, 3, 2),
        SlicePoolState("v4-16", 1, cloud.pools[1].maximum, 0, 0),
    ]
    lines = {line.name: line for line in cloud.lines}
    assert [lines[f"ray-here-{number}"].in_ray for number in (1, 2, 3)] == [1, 1, 0]
    assert all(
        line.age_s is not None and line.age_s < 600 for name, line in lines.items() if name.startswith("ray-here-1")
    )
    assert f"{ZONE_PATH}/instances/ray-here-head-1".endswith(cloud.lines[0].name)


def test_cluster_shows_jobs_with_owners(seen: dict[str, ClusterOverview]) -> None:
    ray = seen["here"].ray
    assert ray is not None and (ray.version, ray.nodes, ray.running, ray.waiting) == ("2.60.0", 2, 1, 1)
    assert ray.used == [ResourceUse("TPU", 0.0, 8.0), ResourceUse("CPU", 0.0, 480.0)]
    waiting, running = ray.jobs
    assert (waiting.job, waiting.status, waiting.owner) == ("of-ada", "PENDING", "ada?[31m")
    assert (running.dag_id, running.run_id, running.task_id, running.step) == ("nightly", "r1", "train", "train@1")
    known, unknown = ray.waits
    assert (known.job, known.owner, known.step) == ("of-a-task", "task train of run r1 of nightly", "train@1")
    assert (known.kind, known.count, known.resources, known.task_id) == ("Ray task", 2, "4 TPU", "train")
    assert known.since is not None and (unknown.job, unknown.owner) == ("not a submitted job (Ray's 07)", "")


def test_cluster_shows_lock_and_age_of_token(seen: dict[str, ClusterOverview]) -> None:
    lock, token = seen["here"].lock, seen["here"].token
    assert lock is not None and (lock.state, lock.operation, lock.holder) == ("held", "restart", "ada@laptop")
    assert token is not None and (token.secret, token.version, token.enabled) == (SECRET, 1, 1)
    assert token.age_s is not None and token.age_s < 600
    assert TOKEN not in repr(seen)
    assert seen["here"].alarms == []  # an operation runs


def test_dead_cluster_has_a_problem_for_each_fact(seen: dict[str, ClusterOverview], head: WatchedHead) -> None:
    there = seen["there"]
    assert there.cloud is None and "'tpu.locations.get'" in str(there.cloud_problem)
    assert there.ray is None and "127.0.0.1:9" in str(there.ray_problem)
    assert there.lock is not None and there.lock.state == "free"
    assert there.alarms == ["The head does not answer."]
    assert ClusterHealth.of(there) == ClusterHealth("there", "unknown", "", None, None, None, None, there.alarms)
    assert ClusterHealth.of(seen["here"]) == ClusterHealth(
        "here", "its head was set up", "restart by ada@laptop", 2, 4, 1, 1, []
    )


def test_overview_changes_nothing(seen: dict[str, ClusterOverview], google: LocalGoogle, head: WatchedHead) -> None:
    assert google.secrets.accesses == []  # versions are listed, and no value is read
    assert set(head.jobs) == {"of-a-task", "of-ada", "ended"} and head.jobs["of-ada"]["status"] == "PENDING"


UP = CloudOverview("its head was set up", [], [SlicePoolState("v4-8", 2, 8, 2, 2)])
RAY = RayOverview("http://h:8265", "2.60.0", 1, [], 0, 0, [], [])
STALLED = StalledStep("here", "train@1", "job", "/x", "step", 0.0, 1200.0, 900.0)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ((UP, RAY, None, LockOverview("free"), []), []),
        ((None, None, "denied", None, []), ["The head does not answer."]),
        ((CloudOverview("there is nothing of it", [], []), None, "no head", None, []), []),
        ((UP, None, "no answer", None, []), ["The head does not answer."]),
        ((CloudOverview("it has slices and no head", [], []), None, None, None, []), ["It has slices and no head."]),
        (
            (replace(UP, pools=[SlicePoolState("v4-8", 2, 8, 1, 0)]), RAY, None, None, []),
            ["0 of 2 slices v4-8 are ready."],
        ),
        ((replace(UP, pools=[SlicePoolState("v4-8", 2, 8, 1, 0)]), RAY, None, LockOverview("held"), []), []),
        (
            (replace(UP, lines=[ResourceLine("v4-8", "a", "PREEMPTED", 9.0)]), RAY, None, None, []),
            ["1 machine or slice PREEMPTED."],
        ),
        ((UP, RAY, None, LockOverview("interrupted", sentence="Half-done."), []), ["Half-done."]),
        ((UP, RAY, None, None, [STALLED]), ["Step train@1: no step for 20 min."]),
    ],
)
def test_alarms_name_what_a_user_should_look_at(facts: Any, expected: list[str]) -> None:
    assert alarms_of(*facts) == expected


@pytest.mark.parametrize(
    ("state", "in_ray", "health"),
    [
        ("READY", 2, "ready"), ("READY", None, "ready"), ("READY", 1, "incomplete"), ("CREATING", 0, "coming"),
        ("PREEMPTED", 2, "gone"), ("DELETING", 0, "gone"), ("RUNNING", None, "ready"),
        ("WAITING_FOR_RESOURCES", None, "coming"),
    ],
)  # fmt: skip
def test_health_follows_google_and_ray(state: str, in_ray: int | None, health: str) -> None:
    assert ResourceLine.of(NodeLine("v4-16", "a", state, 9.0, 2, in_ray), is_slice=True).health == health


def test_token_age_is_that_of_newest_enabled_version(fleet: Fleet) -> None:
    cluster = fleet.cluster("here")
    versions = [SecretVersion("v3", 3, "DISABLED", 90.0), SecretVersion("v2", 2, "ENABLED", 50.0)]
    assert token_overview(cluster, versions, 100.0) == TokenOverview(SECRET, 2, 50.0, 1)
    assert token_overview(cluster, versions[:1], 100.0) == TokenOverview(SECRET)


def test_jobs_of_an_overview_are_bounded(head: WatchedHead) -> None:
    found = poll_head(RayCluster("here", head.url))
    [job] = [job for job in found.jobs if job.job == "of-ada"]
    ray = ray_overview(replace(found, jobs=[job] * 1000))
    assert (ray.waiting, len(ray.jobs), ray.is_cut) == (1000, MAX_JOBS, True)
