"""A served model through a real Airflow: a group of tasks uses it, and it ends although one of them was marked."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import psutil
import pytest

from tests.airflow.conftest import Environment
from tests.serving import tiny_engine
from tests.support.waiting import until

pytestmark = [pytest.mark.airflow, pytest.mark.ray]


def engines(log: Path) -> int:
    """Count the processes of engines that write into ``log``."""
    return sum(str(log) in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def test_pool_serves_its_group_and_ends_when_a_task_is_marked(env: Environment, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    conf = {"model": str(tmp_path), "python": sys.executable, "engine": tiny_engine.__file__, "log": str(log)}
    run = env.begin("serves_model", conf)
    until(lambda: run.states()["ask"] in ("success", "failed", "upstream_failed"), "the answer", lambda: run.states())
    assert run.states()["ask"] == "success", run.log("serve") + run.log("ask")
    assert env.api.xcom("serves_model", run.run_id, "ask") == tiny_engine.answer_text("Who is there?", 8)
    served = env.api.xcom("serves_model", run.run_id, "serve")
    assert served.keys() == {"name", "address", "model", "started"} and served["started"]
    assert re.search(rf"Pool {served['name']} serves tiny at http://\S+/v1, at most until 20", run.log("serve"))
    assert env.api.links("serves_model", run.run_id, "serve")["Ray job"]
    assert engines(log)
    until(lambda: run.task("work")["state"] in ("running", "deferred"), "the task that works")
    env.api.mark_task("serves_model", run.run_id, "work", "failed")
    run.wait()
    assert run.states() == {"serve": "success", "ask": "success", "work": "failed", "serve_end": "success"}
    assert env.api.xcom("serves_model", run.run_id, "serve_end") == "stopped"
    assert engines(log) == 0
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["begun", "answered"]
