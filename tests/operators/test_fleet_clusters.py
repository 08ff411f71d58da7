"""Maintenance skips a cluster with a running operation and reports interrupted operations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.deployment.fleet import current_operation
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.fleet_file import FLEET_VARIABLE, load_fleet
from tradewind.fleet.lock import ClusterLock, lock_path
from tradewind.fleet.upkeep import LockNote, UpkeepReport
from tradewind.operators.fleet import MARKERS, FleetClustersOperator
from tradewind.operators.reconcile import RayReconcileOperator
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.storage.swap import write_if

OTHER = "  there: {zone: us-east5-a, generation: v5p, bucket: my-bucket}\n"


@pytest.fixture
def cluster(cloud: LocalCloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetCluster]:
    """One of two clusters of a fleet, with a free cluster lock."""
    file = write_fleet(tmp_path, OTHER, inside=False)
    file.write_text(file.read_text().replace("my-bucket", "bucket"))
    monkeypatch.setenv(FLEET_VARIABLE, str(file))
    yield (found := load_fleet(file).cluster("here"))
    ClusterLock.of(found).take("stop", "over", is_anew=True).finish()


def maintained() -> tuple[list[str], list[dict[str, Any]]]:
    """Return the clusters that maintenance handles, and its events about cluster locks."""
    xcoms: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: xcoms.update({key: value}))
    clusters = FleetClustersOperator(task_id="clusters").execute({"ti": ti, "params": {}})  # type: ignore[typeddict-item]
    return [cluster["name"] for cluster in clusters], xcoms[MARKERS]


def test_locked_cluster_is_skipped_with_informational_note(cluster: FleetCluster) -> None:
    assert maintained() == (["here", "there"], [])
    with ClusterLock.of(cluster).take("restart", "restarting Ray", holder="ada@laptop") as held:
        names, (note,) = maintained()
        held.finish()
    assert names == ["there"]
    report = UpkeepReport([LockNote(**note).line()])
    assert report.needs_attention == []
    assert "here" in report.table() and "ada@laptop is at restart" in report.table()
    assert maintained() == (["here", "there"], [])


def test_interrupted_operation_needs_user_but_cluster_is_checked(cluster: FleetCluster) -> None:
    with ClusterLock.of(cluster).take("restart", "restarting Ray", holder="ada@laptop"):
        pass
    names, (note,) = maintained()
    assert names == ["here", "there"]
    (sentence,) = UpkeepReport([LockNote(**note).line()]).needs_attention
    assert "restart by ada@laptop" in sentence and "was interrupted in phase restarting Ray" in sentence


def test_cluster_with_unreadable_lock_is_skipped_for_user(cluster: FleetCluster) -> None:
    path, lock = lock_path(cluster), ClusterLock.of(cluster)
    lock.take("stop", "over", is_anew=True).finish()
    good = lock.read()
    assert good is not None
    bad = write_if(path, "nonsense", good.tag)
    names, (note,) = maintained()
    assert bad is not None and write_if(path, good.marker.to_json(), bad.tag) is not None
    assert names == ["there"] and note["needs_person"]
    assert LockNote(**note).line().state.startswith("Unknown whether a command is changing it: ")


def test_reconciliation_skips_locked_cluster(cluster: FleetCluster) -> None:
    reconcile = RayReconcileOperator(task_id="reconcile", ray_conn_ids=[cluster.connection])
    with ClusterLock.of(cluster).take("restart", "restarting Ray", holder="ada@laptop") as held:
        assert "ada@laptop is at restart" in (current_operation(cluster.connection) or "")
        assert reconcile.execute({"ti": None}) == []  # type: ignore[typeddict-item]
        held.finish()
    assert current_operation(cluster.connection) is None
