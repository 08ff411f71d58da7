"""A real Airflow in a temporary folder, observed by its API, command line, processes and files."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
import requests

from tests.support.waiting import limit_s, until
from tradewind.rehearsal.local import airflow as local_airflow
from tradewind.rehearsal.local.airflow import COMPONENTS, LocalAirflow, LocalAirflowError, all_healthy
from tradewind.rehearsal.local.airflow_api import AirflowApi, AirflowApiError
from tradewind.rehearsal.local.airflow_config import (
    NEW_DATABASES,
    OBJECTS_PER_COLLECTION,
    WORKER_PROCESSES,
    Ports,
    Secrets,
    write_config,
)
from tradewind.rehearsal.local.processes import LocalStack

TINY_DAG = """
import gc
import os
import sys
import pendulum
from airflow.sdk import BaseHook, dag, task

@dag(schedule=None, start_date=pendulum.datetime(2024, 1, 1))
def tiny():
    @task
    def ask():
        print("asked from", os.environ["HOME"])
        host = BaseHook.get_connection("somewhere").host
        return {
            "host": host,
            "setting": os.environ["EXTRA_SETTING"],
            "collects_at": gc.get_threshold()[0],
            "found_ray": "ray" in sys.modules,
        }

    @task
    def answer(given):
        print("given", given["host"])

    answer(ask())

tiny()
"""


SLOW_FORKS = """
import os
import sys
import time
from pathlib import Path

def linger():
    flag = Path(os.environ["SLOW_FORK_FILE"])
    if "scheduler" in sys.argv and flag.exists():
        flag.unlink()
        time.sleep(60)  # until a signal

os.register_at_fork(before=linger)
"""
"""Plugin: while the file exists, a signal reaches the scheduler during its next fork."""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    root = tmp_path_factory.mktemp("stack")
    (root / "dags").mkdir()
    (root / "dags" / "tiny.py").write_text(TINY_DAG)
    (root / "airflow" / "plugins").mkdir(parents=True)
    (root / "airflow" / "plugins" / "slow_forks.py").write_text(SLOW_FORKS)
    stack = LocalStack(root)
    running = LocalAirflow(
        stack,
        dags_folder=root / "dags",
        connections={"somewhere": '{"conn_type": "generic", "host": "far.example"}'},
        settings={"EXTRA_SETTING": "100%", "SLOW_FORK_FILE": f"{root}/slow_fork"},
    )
    try:
        running.start()
        yield running
        # By descent, not by the marker that the stop command uses.
        family = [psutil.Process(child.pid) for child in running.processes.values()]
        family += [descendant for parent in family for descendant in parent.children(recursive=True)]
    finally:
        stopped = stack.stop(grace_seconds=5.0)
    assert stopped > 5 < len(family)  # the count varies by one: a DAG file's process is short-lived
    assert [left for left in family if left.is_running() and left.status() != psutil.STATUS_ZOMBIE] == []
    assert stack.processes() == []


@pytest.fixture(scope="module")
def api(airflow):
    client = AirflowApi(airflow.url, airflow.username, airflow.password)
    client.wait_for_dag("tiny", limit_s())
    client.unpause("tiny")
    return client


@pytest.mark.airflow
def test_run_executes_tasks_whose_log_and_xcom_are_readable(airflow, api):
    states = []
    run_id = api.trigger("tiny")
    run = api.wait_for_run("tiny", run_id, limit_s(), on_poll=lambda run: states.append(run["state"]))
    assert run["state"] == states[-1] == "success"
    assert {task["task_id"] for task in api.task_instances("tiny", run_id)} == {"ask", "answer"}
    assert api.xcom("tiny", run_id, "ask") == {
        "host": "far.example",
        "setting": "100%",
        "collects_at": OBJECTS_PER_COLLECTION,
        "found_ray": True,
    }
    assert f"asked from {airflow.stack.root}/home" in api.task_log("tiny", run_id, "ask", 1)
    assert "given far.example" in api.task_log("tiny", run_id, "answer", 1)


@pytest.mark.airflow
def test_long_database_lock_delays_only_writers(airflow, api):
    """The test starts more writers than Airflow's 15 database connections."""
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=60, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(20) as pool:
            triggered = pool.submit(api.trigger, "tiny", logical_date=datetime.now(UTC))
            others = [pool.submit(api.put_connection, f"other-{n}", {"conn_type": "http"}) for n in range(19)]
            unlocked_at = time.monotonic() + 8  # SQLite's other writers give up after 5 s by default
            while time.monotonic() < unlocked_at:
                assert requests.get(f"{airflow.url}/api/v2/version", timeout=30).ok
                time.sleep(0.2)
            assert not any(writer.done() for writer in [triggered, *others])
            database.execute("COMMIT")
            run_id = triggered.result()
            assert [writer.exception() for writer in others] == [None] * len(others)
    run = api.wait_for_run("tiny", run_id, limit_s(), on_poll=lambda run: airflow.raise_if_a_component_died())
    assert run["state"] == "success"


@pytest.mark.airflow
def test_scheduler_stops_although_worker_misses_signal(airflow):
    scheduler = psutil.Process(airflow.processes["scheduler"].pid)
    reads = until(lambda: the_reader(scheduler.children()), "all workers to be idle", scheduler.children)
    reads.kill()  # it holds the lock that the other workers need to receive the signal
    reads.wait()
    airflow.stop_component("scheduler", grace_seconds=60)
    assert not scheduler.is_running()
    airflow.start_component("scheduler")


@pytest.mark.airflow
def test_scheduler_stops_when_signalled_during_fork(airflow):
    airflow.stop_component("scheduler")
    flag = airflow.stack.root / "slow_fork"
    flag.touch()
    airflow.start_component("scheduler")
    until(lambda: not flag.exists(), "the scheduler to fork")
    scheduler = airflow.processes["scheduler"]
    airflow.stop_component("scheduler", grace_seconds=60)
    assert scheduler.returncode == 0
    airflow.start_component("scheduler")
    log = (airflow.stack.logs / "airflow-scheduler.log").read_text()
    assert log.count("Exception ignored in: <function linger") == 1, "the first signal was not lost"


def the_reader(workers):
    """Return the worker that reads the task queue under its lock, or None until all workers are idle."""
    are_idle = ["<idle>" in " ".join(worker.cmdline()) for worker in workers]
    reading = [worker for worker in workers if is_reading_a_pipe(worker)]
    return reading[0] if are_idle == [True] * WORKER_PROCESSES and len(reading) == 1 else None


def is_reading_a_pipe(process):
    """Return whether the process waits in a system call whose first argument is a pipe's descriptor."""
    call = Path(f"/proc/{process.pid}/syscall").read_text().split()
    try:
        return os.readlink(f"/proc/{process.pid}/fd/{int(call[1], 16)}").startswith("pipe:")
    except (IndexError, OSError):  # the process runs, or the argument is no descriptor
        return False


@pytest.mark.airflow
def test_refused_request_raises_one_sentence_with_status(airflow, api):
    with pytest.raises(AirflowApiError, match=r"GET .*/dags/missing/dagRuns/none: Airflow answered 404: .+") as refused:
        api.dag_run("missing", "none")
    assert refused.value.status == 404
    with pytest.raises(AirflowApiError, match="answered 401"):
        AirflowApi(airflow.url, airflow.username, "wrong").import_errors()


@pytest.mark.airflow
def test_wait_for_unreadable_dag_reports_import_error(airflow, api):
    broken = airflow.dags_folder / "broken.py"
    broken.write_text("from airflow.sdk import dag\nraise RuntimeError('half written')\n")
    until(api.import_errors, "the DAG processor to read it")
    broken.unlink()
    reported: list[str] = []
    with pytest.raises(AirflowApiError, match="'broken' was not found within 0.1 s: .*cannot be read: Runtime"):
        api.wait_for_dag("broken", 0.1, on_poll=lambda: reported.extend(api.broken_files()))
    assert reported[0] == "broken.py cannot be read: RuntimeError: half written"


@pytest.mark.airflow
def test_secrets_stay_in_private_files_and_servers_on_loopback(airflow):
    for name in ("airflow.cfg", "secrets.json", "passwords.json"):
        assert stat.S_IMODE((airflow.home / name).stat().st_mode) == 0o600
    for process in airflow.stack.processes():
        assert airflow.password not in " ".join(process.cmdline())
        assert airflow.password not in process.environ().values()
        for connection in process.net_connections("inet"):
            assert connection.status != psutil.CONN_LISTEN or connection.laddr.ip.startswith("127."), process


@pytest.mark.airflow
def test_restart_keeps_secrets_and_database_and_new_one_is_copy(tmp_path, monkeypatch):
    def airflow_in(folder):
        return LocalAirflow(LocalStack(tmp_path / folder), dags_folder=tmp_path, connections={}, settings={})

    (tmp_path / "cache").mkdir()
    monkeypatch.setenv(NEW_DATABASES, str(tmp_path / "cache"))
    first = airflow_in("stack")
    first.prepare()
    with closing(sqlite3.connect(first.home / "airflow.db")) as database:
        database.execute("CREATE TABLE mine (value)")
    before = (first.home / "airflow.db").stat().st_mtime_ns
    second = airflow_in("stack")
    second.prepare()
    assert second.password == first.password
    assert (first.home / "airflow.db").stat().st_mtime_ns == before
    # LocalAirflow migrates the same database under another version of Airflow.
    (first.home / "migrated").write_text("2.0.0 ['abc']")
    second.prepare()
    assert (first.home / "migrated").read_text().startswith("3.")
    assert "mine" in tables(first)
    new = airflow_in("new")
    monkeypatch.setattr(new, "cli", None)
    new.prepare()
    assert tables(new) == tables(first) - {"mine"}
    assert (new.home / "migrated").read_text() == (first.home / "migrated").read_text()


IMPORTED_AT_START = """
import json, runpy, sys
plugin = runpy.run_path(sys.argv[1])
before = sorted(sys.modules)
plugin["on_starting"](None)
print(json.dumps([before, sorted(sys.modules)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("component", "expected"),
    [
        ("scheduler", {"tradewind.operators.experiment", "ray"}),
        ("dag-processor", {"tradewind.operators.experiment"}),
        ("triggerer", set()),
    ],
)
def test_preloaded_imports_exclude_ray_except_in_scheduler(tmp_path, component, expected):
    write_config(tmp_path, tmp_path, Ports.free(), Secrets.new())
    plugin = tmp_path / "plugins" / "early_imports.py"
    command = [sys.executable, "-c", IMPORTED_AT_START, str(plugin), component]
    env = os.environ | {"AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    before, after = map(set, json.loads(done.stdout))
    watched = {"tradewind.operators.experiment", "ray"}
    assert (before & watched, after & watched) == (set(), expected)


def tables(airflow):
    with closing(sqlite3.connect(airflow.home / "airflow.db")) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master")}


@pytest.mark.airflow
def test_dead_component_ends_start_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(local_airflow, "COMPONENTS", {"scheduler": COMPONENTS["scheduler"]})  # one starts faster
    stack = LocalStack(tmp_path)
    settings = {"AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "soon"}
    airflow = LocalAirflow(stack, dags_folder=tmp_path, connections={}, settings=settings)
    with pytest.raises(LocalAirflowError, match="(?s)The Airflow scheduler ended with exit code 1; .*soon"):
        airflow.start()
    assert stack.processes() == []


STARTED_AT = datetime(2026, 1, 31, tzinfo=UTC)


def health(heartbeat, status="healthy"):
    at = heartbeat.isoformat()
    return {
        "metadatabase": {"status": "healthy"},
        "scheduler": {"status": "healthy", "latest_scheduler_heartbeat": at},
        "dag_processor": {"status": "healthy", "latest_dag_processor_heartbeat": at},
        "triggerer": {"status": status, "latest_triggerer_heartbeat": at},
    }


@pytest.mark.slow
def test_health_requires_heartbeats_of_this_start():
    assert all_healthy(health(STARTED_AT + timedelta(seconds=1)), STARTED_AT)
    assert not all_healthy(health(STARTED_AT - timedelta(seconds=1)), STARTED_AT)
    assert not all_healthy(health(STARTED_AT + timedelta(seconds=1), "unhealthy"), STARTED_AT)
    never = health(STARTED_AT) | {"triggerer": {"status": None, "latest_triggerer_heartbeat": None}}
    assert not all_healthy(never, STARTED_AT)
