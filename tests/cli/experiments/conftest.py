"""Fixtures: a test environment per test, and Airflow's database for tests that need its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import airflow.settings
import pendulum
import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from sqlalchemy import delete

from tests.cli.conftest import Run
from tests.cli.experiments.environment import NIGHTLY, Environment, settings


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Connect this process to an Airflow database."""
    with pytest.MonkeyPatch.context() as patch:
        file = tmp_path_factory.mktemp("database") / "airflow.db"
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{file}")
        airflow.settings.configure_vars()
        airflow.settings.reconfigure_orm()
        import_all_models()
        Base.metadata.create_all(airflow.settings.engine)
        yield
    airflow.settings.configure_vars()
    airflow.settings.reconfigure_orm()


@pytest.fixture
def runs(database: None) -> Iterator[Callable[..., None]]:
    """Add a run to Airflow's database, which starts empty."""

    def add(state: str, dag_id: str = "nightly", run_type: str = "manual", **fields: Any) -> None:
        with create_session() as session:
            now = pendulum.now("UTC")
            session.add(DagRun(dag_id, "the-run", state=state, run_type=run_type, run_after=now, **fields))

    yield add
    with create_session() as session:
        session.execute(delete(DagRun))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Environment:
    (tmp_path / "dags").mkdir()
    for name, value in {**settings(tmp_path), "_AIRFLOW_PROCESS_CONTEXT": "server"}.items():
        monkeypatch.setenv(name, value)
    environment = Environment(tmp_path, run)
    environment.add_dag("nightly", NIGHTLY)
    return environment
