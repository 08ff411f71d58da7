"""Reads across regions with a store that knows bucket locations; local paths cause no requests."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.fleet.fleets import write_fleet
from tradewind.deployment.fleet import fleet_bucket_regions
from tradewind.plans.regions import CrossRegionReadError
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.records.manifests import make_manifest, write_manifest
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.steps import ExecutorStep, ResolvedStep, on_airflow_worker, output_path_of, resolve, this_output_path
from tradewind.storage.errors import StoreUnavailableError
from tradewind.tasks import regions
from tradewind.tasks.regions import location_of, refuse_cross_region_reads, region_of, stored_size


@dataclass(frozen=True)
class Config:
    value: Any
    output_path: Any


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloudStorage]:
    """A store with one bucket near the cluster and one far from it."""
    server = LocalCloudStorage()
    server.start()
    server.buckets.create("near", "us-central2")
    server.buckets.create("far", "europe-west4")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    _forget()
    try:
        yield server
    finally:
        _forget()
        server.stop()


def _forget() -> None:
    location_of.cache_clear()
    fleet_bucket_regions.cache_clear()
    for kind in ("gs", "gcs"):
        fsspec.get_filesystem_class(kind).clear_instance_cache()


@pytest.fixture(autouse=True)
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that adds a cluster's connection; ``cluster`` is in us-central2."""

    def add(conn_id: str, **extra: Any) -> str:
        described = {"conn_type": "ray", "host": "http://127.0.0.1:1", "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(described))
        return conn_id

    add("cluster", region="us-central2")
    return add


def put(path: str, text: str) -> None:
    with fsspec.open(path, "w") as file:
        file.write(text)


def reader(*values: Any, name: str = "train", **fields: Any) -> ResolvedStep:
    step = ExecutorStep(name, None, Config(list(values), this_output_path()), **fields)
    return resolve([step], "gs://near/prefix").of(step)


def check(*steps: ResolvedStep, allowed: tuple[str, ...] = (), cluster: str = "cluster") -> None:
    refuse_cross_region_reads(steps, lambda step: cluster, allowed)


def test_far_bucket_read_is_refused_with_size_from_listing(store: LocalCloudStorage) -> None:
    put("gs://far/corpus/a.txt", "x" * 1200)
    put("gs://far/corpus/deep/b.txt", "x" * 300)
    put("gs://near/corpus/a.txt", "x")
    with pytest.raises(CrossRegionReadError) as caught:
        check(reader("gs://far/corpus", "gs://far/corpus/deep/b.txt", "gs://far/nothing", "gs://near/corpus"))
    assert str(caught.value).splitlines()[1:] == [
        "  step 'train' in us-central2 reads gs://far/corpus (1.5 kB) in europe-west4",
        "  step 'train' in us-central2 reads gs://far/corpus/deep/b.txt (300 bytes) in europe-west4",
        "  step 'train' in us-central2 reads gs://far/nothing (of unknown size) in europe-west4",
    ]


def test_output_size_is_that_of_its_manifest(store: LocalCloudStorage) -> None:
    raw = ExecutorStep("raw", None, None, override_output_path="gs://far/raw")
    put("gs://far/raw/data.txt", "x" * 2000)
    LeaseStore("gs://far/raw").claim(None, LeaseClaim(2, "job", "", {}, "v"))
    write_manifest("gs://far/raw", make_manifest("gs://far/raw", 2))
    put("gs://far/raw/later.txt", "x" * 500)  # not part of the output
    assert stored_size("gs://far/raw") == 2000
    with pytest.raises(CrossRegionReadError, match=r"reads gs://far/raw \(2 kB\)"):
        check(reader(output_path_of(raw)))


def test_near_or_allowed_reads_are_not_refused(store: LocalCloudStorage) -> None:
    check(reader("gs://near/a"))
    check(reader("gs://far/a"), allowed=("train",))
    check(reader("gs://far/a"), allowed=("gs://far",))


def test_buckets_of_the_fleet_file_cause_no_requests(
    store: LocalCloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "  there: {zone: europe-west4-b, generation: v5e, bucket: fleet-bucket}\n"
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path, other, inside=False)))
    with pytest.raises(CrossRegionReadError, match="reads gs://fleet-bucket/a .* in europe-west4"):
        check(reader("gs://fleet-bucket/a"))
    check(reader("gs://near/a"))
    assert store.requests["bucket"] == 1  # the bucket near, which the fleet file lacks


def test_unusable_fleet_file_warns_and_falls_back_to_store(
    store: LocalCloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRADEWIND_FLEET", str(tmp_path / "nowhere.yaml"))
    check(reader("gs://near/a"))
    assert store.requests == {"bucket": 1}
    assert "regions of buckets come from the store" in caplog.text
    assert "nowhere.yaml:1: the file cannot be read" in caplog.text


def test_bucket_and_connection_are_read_once(store: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    monkeypatch.setattr(regions, "region_of", lambda conn_id: reads.append(conn_id) or region_of(conn_id))
    for number_of_checks in (1, 2, 3):
        check(*(reader(f"gs://near/{number}", name=f"step{number}") for number in range(5)))
        assert reads == ["cluster"] * number_of_checks
    assert store.requests == {"bucket": 1}


def test_unknown_cluster_region_causes_no_requests(store: LocalCloudStorage, connect: Callable[..., str]) -> None:
    assert region_of(connect("silent")) is None and region_of("missing") is None
    assert region_of(connect("spaced", region=" US-Central2 ")) == "us-central2"
    check(reader("gs://far/a"), cluster="silent")
    check(reader("gs://far/a"), cluster="missing")
    check(reader("gs://far/a", resources=on_airflow_worker()))
    assert not store.requests


def test_bucket_of_unknown_location_is_not_checked(store: LocalCloudStorage, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(reader("gs://missing/a"))
    assert "Reads from bucket missing are not checked" in caplog.text
    store.failures, store.failure_status = 1, 403
    check(reader("gs://far/a"))


@pytest.mark.slow
def test_lookup_is_retried_until_its_timeout(store: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    store.failures = 1
    assert location_of("far") == "europe-west4"
    location_of.cache_clear()
    monkeypatch.setattr(regions, "LOOKUP_TIMEOUT_S", 1.0)
    store.failures = 1000
    with pytest.raises(StoreUnavailableError, match="The region of bucket 'far' is unknown"):
        check(reader("gs://far/a"))
    store.stop()
    with pytest.raises(StoreUnavailableError):
        check(reader("gs://far/a"))


def test_read_of_unknown_size_is_refused(store: LocalCloudStorage) -> None:
    assert location_of("far") == "europe-west4"
    store.failures, store.failure_status = 1000, 403
    with pytest.raises(CrossRegionReadError, match=r"reads gs://far/a \(of unknown size\)"):
        check(reader("gs://far/a"))


WITHOUT_BUCKETS = """
import sys
from tradewind.tasks.regions import refuse_cross_region_reads
from tradewind.steps import ExecutorStep, resolve

def cluster_of(step):
    raise AssertionError("requested a cluster")

step = ExecutorStep("train", None, {"a": "/data", "b": "s3://b/c"})
refuse_cross_region_reads([resolve([step], "/prefix").of(step)], cluster_of)
assert not [name for name in sys.modules if name.startswith(("google.cloud.", "google.api_core", "gcsfs"))]
"""


@pytest.mark.slow
def test_local_paths_import_and_request_nothing(tmp_path: Path) -> None:
    env = dict(os.environ, AIRFLOW_HOME=str(tmp_path))
    subprocess.run([sys.executable, "-c", WITHOUT_BUCKETS], check=True, env=env)
