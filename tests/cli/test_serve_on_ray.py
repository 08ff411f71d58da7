"""``tradewind serve`` on a real Ray with a tiny engine: an answer with the token, and the end of the pool."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Run
from tests.serving.exports import tiny_export
from tests.serving.tiny_engine import answer_text
from tests.support.shared_clusters import shared_cluster
from tests.support.waiting import until
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster

pytestmark = pytest.mark.ray

COMMAND = ("serve",)
ENGINE = Path(__file__).parents[1] / "serving" / "tiny_engine.py"
QUICK = ("--num-cpus", "0.1", "--timeout", "10m")


@pytest.fixture(scope="module")
def jobs() -> RayJobs:
    return RayJobs(RayCluster("here", shared_cluster("open").address))


@pytest.fixture(autouse=True)
def ray_address(jobs: RayJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", jobs.cluster.address)


class Serving:
    """A running command; ``out`` and ``err`` are what it has printed."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-u", "-m", "tradewind.cli.main", "serve", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out = self.err = ""
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("out", "err")]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, f"std{name}"):
            setattr(self, name, getattr(self, name) + line)

    def end(self, signum: int) -> int:
        self.process.send_signal(signum)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(120)
        for thread in self._threads:
            thread.join()
        return code


@contextmanager
def serving(*words: str) -> Iterator[Serving]:
    command = Serving(*words)
    try:
        yield command
    finally:
        command.process.kill()
        command.wait()


def engine(*options: str) -> str:
    return f"{sys.executable} {ENGINE} --port {{port}} {' '.join(options)}"


def test_printed_curl_line_works_until_ctrl_c_ends_the_pool(jobs: RayJobs, run: Run, tmp_path: Path) -> None:
    with serving(str(tmp_path), "--name", "tiny", "--engine-command", engine(), *QUICK) as command:
        until(lambda: "curl" in command.out or command.process.poll() is not None, "the curl line")
        assert "curl" in command.out, command.err
        asked = subprocess.run(["sh", "-c", command.out], capture_output=True, text=True)
        assert answer_text("Once upon a time") in asked.stdout, asked.stderr
        [name] = [pool["name"] for pool in run("list", "--json").json]
        assert f"Pool {name} serves tiny with 1 engine for 10 min, or to Ctrl-C." in command.err
        with serving(str(tmp_path), "--name", "tiny", "--engine-command", engine(), *QUICK) as second:
            until(lambda: "curl" in second.out, "the second curl line")
            assert second.end(signal.SIGINT) == 0
            assert "continues to its time limits, as it was there before this command" in second.err
        [token] = re.findall(r"export OPENAI_API_KEY=(\S+)", command.out)
        assert command.end(signal.SIGINT) == 0, command.err
        assert f"Pool {name}: stopped." in command.err
    shown = str([(job.entrypoint, job.metadata, job.message) for job in jobs.jobs()])
    assert token not in shown + command.err


def test_engine_that_does_not_start_is_told_with_its_reason(run: Run, tmp_path: Path) -> None:
    broken = engine("--break-with", "no-such-quantization")
    done = run(str(tmp_path), "--name", "broken", "--engine-command", broken, *QUICK)
    assert done.code == 1 and not done.out
    assert "its engines do not start" in done.err and "no-such-quantization" in done.err
    assert "Traceback" not in done.err and "Ending" not in done.err


@pytest.mark.long
def test_kept_pool_replaces_its_engine_until_it_is_stopped(run: Run, tmp_path: Path) -> None:
    """The new engine gets its code from the package of a job that has ended."""
    with serving(str(tmp_path), "--name", "kept", "--keep", "--engine-command", engine(), *QUICK) as command:
        until(lambda: "curl" in command.out, "the curl line")
        assert command.end(signal.SIGTERM) == 0
        processes = {each: each.info["cmdline"] or [""] for each in psutil.process_iter(["cmdline"])}
        [worker] = [each for each, words in processes.items() if words[0].startswith("ray::EngineWorker")]
        worker.kill()
        worker.wait()
        ask = ["sh", "-c", command.out]
        answer = answer_text("Once upon a time")
        until(lambda: answer in subprocess.run(ask, capture_output=True, text=True).stdout, "another engine")
        [stop] = re.findall(r"To end it: tradewind serve (stop .*)", command.err)
        name, absent = stop.split()[-1], "pool-0123456789ab"
        ended = run(*stop.split(), absent)
        assert (ended.code, ended.out) == (1, f"{name}: stopped\n{absent}: absent\n")


@pytest.mark.long
def test_export_answers_by_levanter_as_the_page_says(tmp_path: Path) -> None:
    with serving(str(tiny_export(tmp_path / "small")), "--timeout", "10m") as command:
        until(lambda: "curl" in command.out or command.process.poll() is not None, "the curl line")
        asked = subprocess.run(["sh", "-c", command.out], capture_output=True, text=True)
        assert json.loads(asked.stdout)["choices"][0]["text"], asked.stdout + asked.stderr + command.err
        assert command.end(signal.SIGINT) == 0


def test_ctrl_c_while_engines_start_leaves_no_pool(jobs: RayJobs, tmp_path: Path) -> None:
    """Nor does a stop of the job that starts it, as when a user marks its task."""
    with serving(
        str(tmp_path), "--name", "slow", "--engine-command", engine("--start-delay", "600"), *QUICK
    ) as command:
        until(lambda: "is starting" in command.err and "-worker-0" in command.err, "an engine that starts")
        assert command.end(signal.SIGINT) == 130
        assert re.search(r"Pool pool-\w+: (stopped|absent)\.", command.err)
    start = max((job for job in jobs.jobs() if "serve-start" in job.job), key=lambda job: job.started_ms or 0)
    assert "ends, since it has not become ready." in jobs.log_text(start.job)


@pytest.mark.long
def test_missing_cpus_are_told_at_once(run: Run, tmp_path: Path) -> None:
    done = run(str(tmp_path), "--engine-command", engine(), "--num-cpus", "64")
    assert done.code == 1
    assert "No engine can ever start here" in done.err
