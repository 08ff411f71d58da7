"""Test environment with a local store and DAG files, and the commands as a user types them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
