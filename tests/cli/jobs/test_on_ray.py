"""``tradewind jobs`` with a real Ray head: what reaches it, what returns, and the effect of signals."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Ended, Run
from tests.support.shared_clusters import NODE_SECRET, shared_cluster
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster

pytestmark = pytest.mark.ray

RAY_LOG = re.compile(r"Running entrypoint for job |Runtime env is setting up")


def lines(ended: Ended) -> list[str]:
    """Return the printed lines without those of Ray's own log, which may follow the first line."""
    return [line for line in ended.out.splitlines() if not RAY_LOG.search(line)]


@pytest.fixture(scope="module")
def jobs() -> RayJobs:
    return RayJobs(RayCluster("here", shared_cluster("open").address))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of the commands."""
    here = tmp_path / "project"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture(autouse=True)
def ray_address(jobs: RayJobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", jobs.cluster.address)


def start(*words: str) -> subprocess.Popen[str]:
    """Start the command as a separate process, which a test can signal."""
    command = [sys.executable, "-u", "-m", "tradewind.cli.main", "jobs", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def status(jobs: RayJobs, job: str) -> str:
    details = jobs.details(job)
    assert details is not None
    return details.status


COMMAND = ("jobs",)
PRINTING = ("python", "-u", "-c")
LASTING = (*PRINTING, "import time; print('at work'); time.sleep(600)")


def test_a_job_that_succeeds_gives_its_lines_and_zero(jobs: RayJobs, folder: Path, run: Run) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "ours.py").write_text("WORD = 'travelled'\n")
    code = "import os, ours; print(ours.WORD, os.environ['A']); print('a b')"
    done = run("submit", "-e", "A=1", "--metadata", "owner=me", "--", *PRINTING, code)
    assert done.code == 0, done.err
    assert lines(done) == ["travelled 1", "a b"]
    [job] = {job.job for job in jobs.jobs() if job.metadata.get("owner") == "me"}
    assert f"Job {job} submitted: {jobs.cluster.job_url(job)}" in done.err
    assert f"ray job submit --address {jobs.cluster.address} --submission-id {job} " in done.err
    assert done.err.splitlines()[-1] == f"tradewind: Ray job {job!r} succeeded."
    example = Path(__file__).parents[3] / "examples" / "estimate_pi.py"
    stopping = run("submit", "--auto-stop", "--", "python", str(example), "--tasks", "2", "--throws", "1000")
    assert stopping.code == 0 and "Stopping" not in stopping.err, "the job has ended"
    assert [line for line in lines(stopping) if line.startswith("Task 2 of 2: pi is about 3.")], stopping.out


def test_a_job_that_fails_gives_one(run: Run) -> None:
    done = run("submit", "--submission-id", "fails", "--", *PRINTING, "print('before'); raise SystemExit(3)")
    assert done.code == 1
    assert lines(done) == ["before"]
    assert "Ray job 'fails' failed with exit code 3" in done.err
    waited = run("wait", "fails", "--show-logs", "-g", "^bef", "--poll", "0.2")
    assert waited.code == 1
    assert re.fullmatch(r"\S+ \S+ fails FAILED", lines(waited)[0]) and lines(waited)[1:] == ["before"]
    assert "Ray job 'fails' failed with exit code 3" in waited.err


def test_a_job_that_is_not_waited_for_can_be_waited_for_later(run: Run) -> None:
    code = "for n in range(9): print('even' if n % 2 == 0 else 'odd', n)"
    submitted = run("submit", "--no-wait", "--", *PRINTING, code)
    [job] = lines(submitted)
    waited = run("wait", "--match", job[2:], "--poll", "0.2")
    assert waited.code == 0
    assert lines(waited)[-1].endswith(f"{job} SUCCEEDED")
    assert lines(run("logs", job, "-g", "even", "-n", "2")) == ["even 6", "even 8"]
    assert len(lines(run("logs", job, "--follow"))) == 9
    assert job not in run("list").out
    listed = run("list", "--all", "--json").json
    assert [one["status"] for one in listed if one["job"] == job] == ["SUCCEEDED"]


def test_an_id_that_exists_is_followed_and_not_run_again(run: Run, tmp_path: Path) -> None:
    words = ("submit", "--submission-id", "twice", "--", "sh", "-c", f"echo ran >> {tmp_path / 'runs'}; echo done")
    first, second = run(*words), run(*words)
    assert (first.code, second.code) == (0, 0)
    assert lines(first) == lines(second) == ["done"]
    assert (tmp_path / "runs").read_text() == "ran\n"
    assert "was submitted before" in second.err


def test_secret_is_fetched_on_cluster_and_stored_nowhere_else(jobs: RayJobs, run: Run) -> None:
    code = "import os, hashlib; print(hashlib.sha256(os.environ['WORD'].encode()).hexdigest())"
    words = ("--submission-id", "with-secret", "--secret", "WORD=env:ON_THE_NODE")
    done = run("submit", *words, "--", *PRINTING, code)
    assert done.code == 0, done.out + done.err
    assert lines(done)[-1] == hashlib.sha256(NODE_SECRET.encode()).hexdigest()
    assert NODE_SECRET not in json.dumps(jobs._get("/api/jobs/with-secret")) + done.err


@pytest.mark.parametrize("given", [("HF_TOKEN=hunter2",), ("NOTE", "hf_" + "Ab1" * 12), ("A", "1", "2")])
def test_refused_variable_prevents_submission(given: tuple[str, ...], jobs: RayJobs, run: Run) -> None:
    before = {job.job for job in jobs.jobs()}
    done = run("submit", "-e", *given, "--", "true")
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert not any(word in done.err for word in ("hunter2", "Ab1Ab1"))
    assert {job.job for job in jobs.jobs()} == before


def test_wait_times_out_and_stop_waits_for_job_ending(jobs: RayJobs, run: Run) -> None:
    for job in ("lasts-1", "lasts-2", "lasts-3"):
        own = ("--metadata", "group=lasting", "--metadata", f"name={job}")
        assert run("submit", "--no-wait", "--submission-id", job, *own, "--", *LASTING).code == 0
    out_of_time = run("wait", "lasts-1", "--timeout", "0.5", "--poll", "0.1")
    assert out_of_time.code == 2 and "and continues" in out_of_time.err
    listed = lines(run("list", "--metadata", "group=lasting"))
    assert [row.split()[0] for row in listed[1:]] == ["lasts-3", "lasts-2", "lasts-1"]

    stopped = run("stop", "lasts-1", "unknown")
    assert stopped.code == 1 and lines(stopped) == ["lasts-1: STOPPED"] and "has no job 'unknown'" in stopped.err
    by_metadata = run("stop", "--metadata", "group=lasting")
    assert by_metadata.code == 0 and sorted(lines(by_metadata)) == ["lasts-2: STOPPED", "lasts-3: STOPPED"]
    assert {status(jobs, job) for job in ("lasts-1", "lasts-2", "lasts-3")} == {"STOPPED"}

    again = run("stop", "--metadata", "group=lasting")
    assert (again.code, again.out) == (0, "") and "No job with these metadata is active" in again.err
    waited = run("wait", "lasts-2")
    assert waited.code == 1 and "was stopped" in waited.err


@pytest.mark.parametrize("words", [("wait", "no"), ("wait", "--match", "no-job"), ("logs", "no"), ("stop", "no")])
def test_a_job_that_is_unknown_gives_one(words: tuple[str, ...], run: Run) -> None:
    done = run(*words)
    assert done.code == 1 and done.out == "" and "has no job" in done.err


def test_a_job_that_takes_too_long_is_stopped(jobs: RayJobs, run: Run) -> None:
    done = run("submit", "--submission-id", "too-long", "--timeout", "4", "--", *LASTING)
    assert done.code == 1 and done.err.count("Ray job 'too-long' ran longer") == 1
    assert status(jobs, "too-long") == "STOPPED"


def test_the_log_is_followed_from_its_last_lines(run: Run, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    printing = "for n in range(5): print('line', n)"
    until_open = f"while not os.path.exists({str(gate)!r}): time.sleep(0.2)"
    code = "\n".join(["import os, time", printing, until_open, "print('line 5')"])
    assert run("submit", "--no-wait", "--submission-id", "gated", "--", *PRINTING, code).code == 0
    waited = run("logs", "gated")
    while "line 4" not in waited.out:  # the job ends much later; the suite's own timeout bounds this loop
        waited = run("logs", "gated")
    assert waited.code == 0
    following = start("logs", "gated", "-f", "-n", "2", "-g", "^line")
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(2)] == ["line 3\n", "line 4\n"]
    gate.touch()
    out, err = following.communicate(timeout=240)
    assert (following.returncode, out) == (0, "line 5\n"), err


def interrupted(signum: signal.Signals, *words: str) -> str:
    """Submit a job, and signal the command once the job runs; return standard error."""
    command = start("submit", *words, "--", *LASTING)
    assert command.stdout is not None
    assert next(line for line in command.stdout if line == "at work\n")
    command.send_signal(signum)
    _, err = command.communicate(timeout=240)
    assert command.returncode == 128 + signum and "Traceback" not in err, err
    return err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_auto_stop_interrupted_command_ends_after_its_job(signum: signal.Signals, jobs: RayJobs) -> None:
    job = f"auto-stopped-{signum.name}"
    err = interrupted(signum, "--auto-stop", "--submission-id", job)
    assert status(jobs, job) == "STOPPED" and f"Job {job} is STOPPED" in err


def test_job_survives_interrupted_command_without_auto_stop(jobs: RayJobs, run: Run) -> None:
    err = interrupted(signal.SIGINT, "--submission-id", "left")
    assert status(jobs, "left") == "RUNNING"
    advice = re.search(r"stop it with 'tradewind jobs (stop .*)'", err)
    assert advice is not None and run(*advice[1].split()).code == 0
    assert status(jobs, "left") == "STOPPED"


def test_closed_pipe_ends_logs_without_traceback(run: Run) -> None:
    assert run("submit", "--submission-id", "long-log", "--", *PRINTING, "print('x\\n' * 200000)").code == 0
    reading = start("logs", "long-log")
    assert reading.stdout is not None and reading.stderr is not None
    reading.stdout.readline()
    reading.stdout.close()
    assert reading.stderr.read() == ""
    assert reading.wait(timeout=240) == 1
