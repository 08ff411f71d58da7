"""Airflow without scheduler, API server or triggerer: one child process runs DAGs with ``dag.test()``.

The plan, the operators, Airflow's task runner, its execution API and its database are real. Tests of users' actions,
deferrals, concurrent runs and crashes belong to ``tests/airflow``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import connection, write_fleet
from tests.operators.loopback_head import LoopbackHead
from tests.support.waiting import limit_s, until
from tradewind.plans.plan import Plan
from tradewind.rehearsal.local.processes import free_port

DAGS = Path(__file__).parent / "dags"


@dataclass(frozen=True)
class Run:
    """A finished run of a DAG: the result of ``child.summary``, and the log lines written meanwhile."""

    state: str
    logical_date: str | None
    partition_key: str | None
    states: dict[str, str]
    tries: dict[str, int]
    results: dict[str, Any]
    text: str

    @property
    def plan(self) -> Plan:
        return Plan.from_json(self.results["plan"])

    @property
    def decisions(self) -> dict[str, str]:
        """Task id → decision of the plan."""
        return {step.task_id: step.decision.value for step in self.plan.steps}

    def decisions_of(self, group: str) -> dict[str, str]:
        """Task id → decision of the plan of a group."""
        plan = Plan.from_json(self.results[f"{group}.plan"])
        return {step.task_id: step.decision.value for step in plan.steps}

    @property
    def reasons(self) -> dict[str, str]:
        """Task id → reason of the decision."""
        return {step.task_id: step.reason for step in self.plan.steps}

    def log(self, task_id: str) -> str:
        """Return the log of all tries of the task."""
        name = re.escape(task_id)
        return "".join(re.findall(rf"starting task_id={name} .*?end task task_id={name} ", self.text, re.DOTALL))


class InProcessAirflow:
    """The child process and its store. A loopback head replaces the cluster, which no step here may use."""

    def __init__(self, root: Path, head: LoopbackHead) -> None:
        self.store = root / "store"
        self.head = head
        self._log = root / "log"
        self._log.touch()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.inprocess.child", str(self._log)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=os.environ | settings(root, self.store, head.url),
        )  # fmt: skip

    def run(self, dag_id: str, conf: dict[str, Any] | None = None, partition_key: str | None = None) -> Run:
        """Run the DAG to its end."""
        before = self._log.stat().st_size
        fields = self._call("run", dag_id, conf or {}, partition_key)
        return Run(**fields, text=self._log.read_bytes()[before:].decode())

    def run_script(self, file: Path) -> Run:
        return Run(**self._call("run_script", str(file)), text="")

    def asset_events(self, name: str) -> list[dict[str, Any]]:
        return list(self._call("asset_events", name))

    def queued_assets(self, dag_id: str) -> list[str]:
        return list(self._call("queued_assets", dag_id))

    def run_interrupted(self, dag_id: str, number: int, head: LoopbackHead) -> tuple[str, str]:
        """Run the DAG, send its process a signal once its trigger asks ``head``, and return its end and log."""
        before = self._log.stat().st_size

        def text() -> str:
            return self._log.read_bytes()[before:].decode()

        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(self._call, "run_interrupted", dag_id)
            until(lambda: "running trigger in line" in text() or call.done(), "the trigger")
            asked = head.requests.total()
            until(lambda: head.requests.total() > asked, "the trigger's question")
            self._child.send_signal(number)
            try:
                return call.result(limit_s()), text()
            except TimeoutError:
                self._child.kill()
                raise

    def add_connection(self, conn_id: str, host: str, conn_type: str = "ray", **extra: str) -> None:
        self._call("add_connection", conn_id, conn_type, host, extra)

    def output(self, name: str) -> Path:
        """Return the only output of the step."""
        [path] = self.store.glob(f"{name}-??????")
        return path

    def attempts(self, name: str) -> int:
        """Count the attempts at all versions of the step."""
        return len(list(self.store.glob(f"{name}-??????/.attempts/*.json")))

    def calls(self, name: str) -> int:
        """Count the calls of the step's function for all versions."""
        return sum(len(file.read_text().splitlines()) for file in self.store.glob(f"{name}-??????.calls"))

    def end(self) -> None:
        self._child.communicate()

    def _call(self, call: str, *arguments: Any) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        print(json.dumps({"call": call, "arguments": arguments}), file=self._child.stdin, flush=True)
        answer = self._child.stdout.readline()
        assert answer, f"The process that runs DAGs has ended:\n{self._log.read_text()[-5000:]}"
        return json.loads(answer)


def settings(root: Path, store: Path, head_url: str) -> dict[str, str]:
    """Return environment variables of the child: an Airflow of its own, with three connections."""
    classpath = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundle = {"name": "inprocess", "classpath": classpath, "kwargs": {"path": str(DAGS)}}
    return {
        "AIRFLOW_HOME": str(root),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{root}/airflow.db",
        "AIRFLOW__TRADEWIND__FLEET_FILE": str(write_fleet(root)),
        "AIRFLOW__TRADEWIND__ALLOWED_ROOTS": str(store),
        "AIRFLOW_CONN_RAY_DEFAULT": connection(head_url, bucket=str(store)),
        "AIRFLOW_CONN_BARE": connection(head_url),
        "AIRFLOW_CONN_GONE": connection(f"http://127.0.0.1:{free_port()}", bucket=str(store)),
    }


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessAirflow]:
    head = LoopbackHead()
    head.start()
    process = InProcessAirflow(tmp_path_factory.mktemp("inprocess"), head)
    yield process
    process.end()
    head.stop()
