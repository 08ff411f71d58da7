"""Plain Ray jobs through a real Airflow: one job per task and each line once despite restarts; no token is shown."""

from __future__ import annotations

import itertools
import json
import random
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
import requests

from tests.airflow.conftest import RUN_TIMEOUT_S, DagRun, Environment, jobs_of
from tests.support.waiting import until
from tradewind.deployment.log_position import FILES
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay

pytestmark = [pytest.mark.airflow, pytest.mark.ray]


def started(env: Environment, dag_id: str, conf: dict | None = None) -> DagRun:
    """Start a run; return it when the task's log shows the job's first line."""
    run = env.begin(dag_id, conf)
    until_followed(run)
    return run


def until_followed(run: DagRun) -> None:
    """Wait for the job's first line in the log of the task's current try."""
    until(lambda: re.search(r" started$", run.log("job"), re.MULTILINE), "the job's first line")


def test_commands_and_functions_run_as_jobs_and_return_results(env: Environment) -> None:
    run = env.run("ray_hello", {"who": "everybody"})
    assert run.states() == dict.fromkeys(["command", "function", "decorated", "in_worker"], "success")
    assert run.log("command").count("hello everybody from command") == 1
    assert run.log("function").count("adding on") == 1
    results = {task: env.api.xcom("ray_hello", run.run_id, task) for task in run.states()}
    assert results["function"]["sum"] == 42
    assert results["decorated"] == {"total": 6, "count": 3}
    assert results["in_worker"] == 7
    ids = {task: env.api.xcom("ray_hello", run.run_id, task, "submission_id") for task in run.states()}
    assert results["command"] == ids["command"]
    assert sorted(ids.values()) == sorted(job["submission_id"] for job in run.jobs())
    assert {env.api.xcom("ray_hello", run.run_id, task, "status") for task in run.states()} == {"SUCCEEDED"}
    [command] = [job for job in run.jobs() if job["submission_id"] == ids["command"]]
    assert command["metadata"]["owner"] == "everybody"


def test_failed_command_fails_task_at_once_with_last_log_lines(env: Environment) -> None:
    run = env.run("ray_fails")
    assert run.states() == {"job": "failed"}
    assert len(run.jobs()) == 1
    log = run.log("job")
    assert re.search(r"RayJobFailedError: Ray job '\S+' failed with exit code 3", log)
    assert log.rindex("reason") > log.index("Last 4 lines of the job")


@pytest.mark.parametrize(("dag_id", "state"), [("ray_sleeps", "failed"), ("ray_sleeps_in_worker", "success")])
def test_running_job_has_links_until_task_is_marked(env: Environment, dag_id: str, state: str) -> None:
    run = started(env, dag_id)
    [job] = run.jobs()
    links = env.api.links(dag_id, run.run_id, "job")
    assert links["Ray job"] == f"{env.ray_address}/#/jobs/{job['submission_id']}"
    assert links["Ray log"] == f"{env.ray_address}/api/jobs/{job['submission_id']}/logs"
    env.api.mark_task(dag_id, run.run_id, "job", state)
    until(lambda: run.job_statuses() == ["STOPPED"], "the job to stop")
    assert run.states() == {"job": state}


@pytest.mark.parametrize("dag_id", ["ray_sleeps", "ray_sleeps_in_worker"])
def test_cleared_task_reruns_once_its_job_has_ended(env: Environment, dag_id: str) -> None:
    run = started(env, dag_id)
    most = 0

    def second_runs() -> bool:
        nonlocal most
        statuses = run.job_statuses()
        most = max(most, statuses.count("RUNNING"))
        return statuses == ["STOPPED", "RUNNING"]

    env.api.clear_task(dag_id, run.run_id, "job")
    until(second_runs, "the second job")
    assert most == 1
    until_followed(run)
    env.api.mark_task(dag_id, run.run_id, "job", "failed")
    until(lambda: run.active_jobs() == 0, "the second job to stop")


def test_pending_job_leaves_queue_when_task_is_marked(env: Environment) -> None:
    run = env.begin("ray_waits")
    until(lambda: run.job_statuses() == ["PENDING"], "the job to wait")
    until(lambda: re.search(r" trigger .* starting$", run.log("job"), re.MULTILINE), "the trigger to follow it")
    env.api.mark_task("ray_waits", run.run_id, "job", "failed")
    until(lambda: run.active_jobs() == 0, "the job to end")


def test_time_limits_stop_job_and_fail_task(env: Environment) -> None:
    long, queued = env.begin("ray_too_long"), env.begin("ray_queues")
    for run in (long, queued):
        run.wait()
        assert run.states() == {"job": "failed"}
        assert run.active_jobs() == 0
    assert "ran longer than its timeout" in long.log("job")
    why = "was not started within 8 s, its queue timeout, and is removed from the queue: no node of the cluster can"
    assert f"{why} serve 1 nothing_has_this; the most that one node has is 0" in queued.log("job")


def test_killed_worker_leaves_one_job(env: Environment, tmp_path: Path) -> None:
    for moment in ("before submission", "after submission", "after deferral is due", "after success is noted"):
        file = tmp_path / moment.replace(" ", "_")
        run = env.begin("killed_worker", {"at": moment, "file": str(file), "steps": 600})
        until(partial(was_deferred, env, run), f"the deferral of the task that dies {moment}")
        Path(f"{file}.go").touch()
        run.wait()
        assert run.states() == {"job": "success"}, moment
        assert run.task("job")["try_number"] == 2, f"{moment}:\n{run.log('job', 2)}"
        assert run.job_statuses() == ["SUCCEEDED"], moment
        assert file.read_text() == "ran\n", moment


def was_deferred(env: Environment, run: DagRun) -> bool:
    """Return whether the task is deferred and Airflow's scheduler knows that its worker has ended.

    If the job ended earlier, the scheduler of Airflow 3.3 could mistake the worker's end for that of the next worker.
    """
    if run.states().get("job") != "deferred":
        return False
    log = (env.airflow.stack.logs / "airflow-scheduler.log").read_text(errors="replace")
    events = [line for line in log.splitlines() if "Received executor event with state success" in line]
    return any(run.run_id in line for line in events)


def test_concurrent_runs_have_own_jobs_and_clear_reruns(env: Environment, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    runs = [env.begin("killed_worker", {"file": str(file)}) for file in files]
    for run, file in zip(runs, files, strict=True):
        run.wait()
        assert run.job_statuses() == ["SUCCEEDED"] and file.read_text() == "ran\n"
    env.api.clear_task("killed_worker", run.run_id, "job")
    until(lambda: run.job_statuses() == ["SUCCEEDED", "SUCCEEDED"], "the second job")
    run.wait()
    assert file.read_text() == "ran\n" * 2


def test_jobs_of_other_tasks_are_waited_for_and_stopped(env: Environment) -> None:
    waited = env.run("ray_waits_for_other")
    assert set(waited.states().values()) == {"success"}
    [job] = waited.jobs()
    for sensor in ("sensor", "poking"):
        assert env.api.xcom("ray_waits_for_other", waited.run_id, sensor) == job["submission_id"]
    stopped = env.run("ray_stops_other")
    assert set(stopped.states().values()) == {"success"}
    assert stopped.job_statuses() == ["STOPPED"]


def test_reconciler_stops_job_of_task_marked_without_triggerer(env: Environment) -> None:
    marked_later, marked = started(env, "ray_sleeps"), started(env, "ray_sleeps")
    until(lambda: {**marked_later.states(), **marked.states()} == {"job": "deferred"}, "both tasks to be deferred")
    env.airflow.kill_component("triggerer")
    try:
        env.api.mark_task("ray_sleeps", marked.run_id, "job", "failed")
        reconciled = env.run("ray_reconcile")
        [job] = marked.jobs()
        assert job["submission_id"] in env.api.xcom("ray_reconcile", reconciled.run_id, "reconcile")
        assert marked.job_statuses() == ["STOPPED"]
        assert marked_later.job_statuses() == ["RUNNING"]
    finally:
        env.airflow.start_component("triggerer")
    env.api.mark_task("ray_sleeps", marked_later.run_id, "job", "failed")
    env.run("ray_reconcile")  # the new triggerer may not have started the task's trigger yet
    until(lambda: marked_later.job_statuses() == ["STOPPED"], "the remaining job to stop")


# ---- lines in the task's log while triggerers restart


RATE = 200
SEED = 20261121


def numbers_in(log: str) -> list[int]:
    """Return the numbers of the job's lines in the order of this log."""
    return [int(found) for found in re.findall(r"(?:^| info )line (\d+)$", log, re.MULTILINE)]


def numbers(run: DagRun) -> list[int]:
    """Return the numbers of the job's lines in the order of the task's log."""
    return numbers_in(run.log("job"))


def printed(run: DagRun) -> int:
    """Return the line count that the job reports at its end."""
    [count] = re.findall(r"(?:^| info )printed (\d+) lines$", run.log("job"), re.MULTILINE)
    return int(count)


def printing(env: Environment, end: Path) -> DagRun:
    """Start a job that prints until the file ``end`` exists."""
    run = env.begin("ray_prints", {"rate": RATE, "end": str(end)})
    until(lambda: len(numbers(run)) > RATE, "the job's first lines")
    return run


def await_more(run: DagRun) -> None:
    """Wait for lines through the new triggerer."""
    seen = len(numbers(run))
    until(lambda: len(numbers(run)) > seen + RATE, "lines through the new triggerer")


def saved_chars(env: Environment, job: str) -> int:
    """Return the log position, in characters, that the triggerer saved last; 0 before the first save."""
    saved = [json.loads(file.read_text()) for file in (env.airflow.home / "logs" / FILES).glob("*.json")]
    return max((one["position"]["chars"] for one in saved if one["job"] == job), default=0)


def number_behind(env: Environment, job: str, chars: int) -> int:
    """Return the number of the first line after ``chars`` characters of the job's log, without newlines."""
    lines = requests.get(f"{env.ray_address}/api/jobs/{job}/logs", timeout=30).json()["logs"].splitlines()
    ends = itertools.accumulate(len(line) for line in lines)
    return next(int(line.removeprefix("line ")) for line, end in zip(lines, ends, strict=True) if end > chars)


@pytest.mark.long
def test_orderly_restarts_neither_lose_nor_repeat_a_line(env: Environment, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    run = printing(env, tmp_path / "end")
    for _ in range(2):
        env.airflow.stop_component("triggerer")
        env.airflow.start_component("triggerer")
        await_more(run)
        time.sleep(moments.uniform(0, 5))
    (tmp_path / "end").touch()
    run.wait()
    assert run.states() == {"job": "success"}
    assert numbers(run) == list(range(printed(run)))
    assert "may come again" not in run.log("job")


def test_killed_triggerer_loses_no_line_and_announces_repeats(env: Environment, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    run = printing(env, tmp_path / "end")
    [job] = [one["submission_id"] for one in run.jobs()]
    until(lambda: saved_chars(env, job), "the first saved position")
    time.sleep(moments.uniform(0, 5))
    env.airflow.kill_component("triggerer")
    saved = saved_chars(env, job)
    env.airflow.start_component("triggerer")
    await_more(run)
    (tmp_path / "end").touch()
    run.wait()
    assert run.states() == {"job": "success"}
    before, after = (numbers_in(part) for part in re.split(r".* may come again below.*\n", run.log("job")))
    assert before == list(range(len(before))), "no line repeats before the announcement"
    assert after == list(range(number_behind(env, job, saved), printed(run))), "lines after the saved position repeat"
    assert after[0] <= len(before), "no line is lost"


# ---- tokens


MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Guarded:
    """A cluster that requires a token, and two connections to it."""

    ray: LocalRay
    token: str
    wrong: str


@pytest.fixture(scope="module")
def guarded(env: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    stack = LocalStack(tmp_path_factory.mktemp("guarded"))
    token, wrong = secrets.token_hex(24), secrets.token_hex(24)
    ray = LocalRay(stack, num_cpus=2, token=token, env={"PASSPHRASE_OF_CLUSTER": "a passphrase"})
    try:
        ray.start()
        for name, password in (("guarded", token), ("wrong_token", wrong)):
            env.api.put_connection(name, {"conn_type": "ray", "host": ray.address, "password": password})
        yield Guarded(ray, token, wrong)
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def refused(env: Environment, guarded: Guarded) -> DagRun:
    """Return a run whose task sends the cluster a wrong token."""
    return env.run("ray_elsewhere", {"conn": "wrong_token", "command": "true"})


def text_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the database deletes its journal when a transaction ends
            if file.is_file() and not file.is_symlink() and file.stat().st_size < MAX_BYTES:
                yield file, file.read_bytes()


def test_token_appears_in_no_log_file_or_command_line(env: Environment, guarded: Guarded, refused: DagRun) -> None:
    run = env.begin("ray_elsewhere", {"conn": "guarded", "command": "echo working; sleep 5; echo done"})
    lines_with_token = set()

    def look(_: object) -> None:
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if guarded.token in line:
                lines_with_token.add(line)

    env.api.wait_for_run(run.dag_id, run.run_id, RUN_TIMEOUT_S, on_poll=look)
    assert run.states() == {"job": "success"}
    assert lines_with_token == set()
    keys = env.api.xcoms(run.dag_id, run.run_id, "job")
    xcoms = {key: env.api.xcom(run.dag_id, run.run_id, "job", key) for key in keys}
    shown = [xcoms, jobs_of(guarded.ray.address, run.run_id, guarded.token), run.task("job"), refused.task("job")]
    text = json.dumps(shown) + run.log("job") + refused.log("job")
    tokens = (guarded.token, guarded.wrong)
    assert not [token for token in tokens if token in text]
    assert env.store.is_relative_to(env.airflow.stack.root)
    files = text_below(env.airflow.stack.root)  # outputs, logs, records, configuration and database
    assert [str(file) for file, data in files if any(token.encode() in data for token in tokens)] == []


def test_refused_token_fails_at_once_and_submits_nothing(env: Environment, guarded: Guarded, refused: DagRun) -> None:
    task = refused.task("job")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert "wrong_token" in refused.log("job")
    assert jobs_of(guarded.ray.address, refused.run_id, guarded.token) == []
