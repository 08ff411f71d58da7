"""Test environment with a local store and DAG files, and Airflow's database for tests that need its runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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

from tests.cli.conftest import Ended, Run
from tradewind.storage.trees import list_files

NIGHTLY = '''
"""An Airflow DAG."""
from dataclasses import dataclass
from typing import Any
from tradewind import ExecutorStep, experiment_dag, night, run_param, versioned

print("a line of the DAG file's own")

@dataclass(frozen=True)
class Config:
    value: Any

def work(config): ...

raw = ExecutorStep("data/raw", work, Config(versioned(run_param("size"))))
train = ExecutorStep("train", work, Config([raw, versioned(run_param("note"))]))
report = ExecutorStep("report", work, Config([train, versioned(night())]))
dag = experiment_dag(
    "nightly", [report], schedule="@weekly", timezone="Europe/Zurich", params={"size": 1.0, "note": "1"}
)
'''
PARTITIONED = '''
"""An Airflow DAG."""
from tradewind import ExecutorStep, experiment_dag, partition_key, versioned

def work(config): ...

dag = experiment_dag("partitioned", [ExecutorStep("shard", work, {"key": versioned(partition_key())})])
'''
GROUPED = '''
"""An Airflow DAG."""
from airflow.sdk import DAG, task
from tradewind import ExecutorStep, experiment_group, run_param, versioned

def work(config): ...

with DAG("grouped", params={"size": 1}):
    key = task(work).override(task_id="key")(1)
    for name in ("shard", "other"):
        step = ExecutorStep(name, work, {"key": versioned(run_param("key")), "size": versioned(run_param("size"))})
        experiment_group(name, [step], values={"key": key})
'''
STRAY = '''
"""An Airflow DAG."""
from tradewind import ExecutorStep, experiment_dag

def work(config): ...

step = ExecutorStep("elsewhere", work, {"reads": "RAW"}, override_output_path="PLACE")
dag = experiment_dag("stray", [step])
'''
ALLOWED = STRAY.replace("[step])", '[step], allow_outside=["elsewhere"])')
MONTHS_S = 60 * 86400.0


@dataclass(frozen=True)
class Environment:
    """A store, and a folder of DAG files that the commands read."""

    root: Path
    run: Run

    @property
    def store(self) -> Path:
        return self.root / "store"

    def add_dag(self, name: str, text: str) -> None:
        (self.root / "dags" / f"{name}.py").write_text(text)

    def __call__(self, *words: str) -> Ended:
        return self.run(*words)

    def plan(self, *words: str) -> dict[str, dict[str, Any]]:
        """Return the plan's steps by name."""
        done = self("plan", "nightly", "--json", *words)
        assert done.code == 0, done.err
        return {step["name"]: step for step in done.json["steps"]}

    def make(self, name: str, *words: str) -> Path:
        """Write a finished output of the step; return its path."""
        path = Path(self.plan(*words)[name]["output_path"])
        path.mkdir(parents=True)
        (path / "model").write_text("weights")
        done = self("adopt", str(path), "--as", name, "--dag", "nightly", *words)
        assert done.code == 0, done.err
        return path

    def age(self) -> None:
        """Backdate the store: its last change is two months old."""
        then = time.time() - MONTHS_S
        for file in list_files(str(self.store)):
            os.utime(self.store / file.path, (then, then))

    def files(self) -> list[str]:
        return [file.path for file in list_files(str(self.store))]


def settings(root: Path) -> Mapping[str, str]:
    bundle = {
        "name": "ours",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(root / "dags")},
    }
    return {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "TRADEWIND_PREFIX": str(root / "store"),
    }


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
