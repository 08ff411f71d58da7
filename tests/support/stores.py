"""Stores for the tests: a folder, memory, and real clients against loopback servers with all preconditions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.storage.s3_server import LocalS3
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer

Server = TypeVar("Server", bound=LoopbackServer)


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[LocalCloudStorage]:
    yield from _running(LocalCloudStorage())


@pytest.fixture(scope="session")
def s3_server() -> Iterator[LocalS3]:
    yield from _running(LocalS3())


def _running(server: Server) -> Iterator[Server]:
    server.start()
    yield server
    server.stop()


@pytest.fixture
def gcs(gcs_server: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloudStorage]:
    """Return the Cloud Storage that ``gs://`` refers to in this test."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
    gcs_server.requests.clear()
    yield gcs_server
    _end_faults(gcs_server)


@pytest.fixture
def s3(s3_server: LocalS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalS3]:
    """Return the S3 server that ``s3://`` refers to in this test."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3_server.requests.clear()
    yield s3_server
    _end_faults(s3_server)


@pytest.fixture
def gs_folder(gcs: LocalCloudStorage) -> str:
    """Return a folder in a new bucket; injected faults apply to this bucket only."""
    gcs.faults_in = _new_bucket()
    return f"gs://{gcs.buckets.create(gcs.faults_in).name}/some/folder"


@pytest.fixture
def s3_folder(s3: LocalS3) -> str:
    """Return a folder in a new bucket; injected faults apply to this bucket only."""
    bucket = s3.faults_in = _new_bucket()
    s3.buckets[bucket] = {}
    return f"s3://{bucket}/some/folder"


@pytest.fixture(params=["local", "memory", "gs", "s3"])
def any_folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a folder on each kind of store."""
    match request.param:
        case "local":
            return str(tmp_path)
        case "memory":
            return f"memory://{_new_bucket()}"
    return str(request.getfixturevalue(f"{request.param}_folder"))


@pytest.fixture(params=["local", "memory", "gs"])
def any_prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty folder on a disk below ``tmp_path``, in memory and in the bucket of ``cloud``."""
    if request.param == "gs":
        request.getfixturevalue("cloud")
        return f"gs://bucket/{tmp_path.name}"
    return str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path.name}"


@pytest.fixture(params=["gs", "s3"])
def served(request: pytest.FixtureRequest) -> tuple[LoopbackServer, str]:
    """Return each store that has a server, with a folder on it."""
    folder = str(request.getfixturevalue(f"{request.param}_folder"))
    return request.getfixturevalue({"gs": "gcs", "s3": "s3"}[request.param]), folder


def _new_bucket() -> str:
    return f"bucket-{uuid.uuid4().hex[:12]}"


def _end_faults(server: LoopbackServer) -> None:
    server.latency_s = server.clock_offset_s = 0.0
    server.failures = server.lost_answers = 0
    server.failure_status = 503
    server.faults_in = ""
