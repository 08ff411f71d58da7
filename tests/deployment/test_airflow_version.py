from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from tradewind.deployment import airflow_version
from tradewind.deployment.airflow_version import check_airflow


@pytest.mark.parametrize("found", ["3.2.2", "2.11.0"])
def test_operators_refuse_airflow_without_task_state(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(airflow_version, "version", lambda name: found)
    with pytest.raises(ImportError, match=rf"needs Airflow 3\.3 or newer, this is {found}"):
        check_airflow()


def test_operators_accept_installed_airflow_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        raise PackageNotFoundError(name)

    check_airflow()
    monkeypatch.setattr(airflow_version, "version", find)
    check_airflow()
