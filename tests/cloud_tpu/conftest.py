"""One loopback Cloud TPU for each test; it starts in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud_tpu.cloud import World
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    cloud = LocalTpuCloud()
    cloud.start()
    try:
        yield World(cloud, tmp_path / "records")
    finally:
        cloud.service.lives.end_all()
        cloud.stop()
