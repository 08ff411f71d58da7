"""One loopback Cloud TPU for each test; it starts in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud_tpu.cloud import TpuEnvironment, serving
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud


@pytest.fixture
def env(tmp_path: Path) -> Iterator[TpuEnvironment]:
    with serving(LocalTpuCloud()) as cloud:
        yield TpuEnvironment(cloud, tmp_path / "records")
