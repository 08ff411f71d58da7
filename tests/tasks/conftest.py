from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def airflow_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
