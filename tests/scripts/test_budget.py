"""The budget counts the processes of a tiny project's tests and fails a run that starts too many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.fleets import REPOSITORY

TESTS = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
import pytest
from tests.support.fork_server import PreparedPython
from tests.support.http_server import serving
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayJobRefusedError
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.airflow import LocalAirflow
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

@pytest.fixture(scope="module")
def child():
    subprocess.run([sys.executable, "-SIc", ""])

def test_children(child):
    subprocess.run([sys.executable, "-SIc", ""])
    subprocess.run(["true"])

def test_training(child):
    python = PreparedPython([], os.environ)
    python.start("", env={}).communicate()
    python.end()

def test_clusters_that_cannot_start(tmp_path):
    (tmp_path / "file").touch()
    stack = LocalStack(tmp_path / "file" / "stack")
    ray = LocalRay(stack, num_cpus=1, slices=[LocalSlice("two-hosts", "v4-16")])
    airflow = LocalAirflow(stack, dags_folder=tmp_path, connections={}, settings={})
    starts = [lambda name=name: airflow.start_component(name) for name in ("scheduler", "api-server")]
    for start in [ray.start, *starts]:
        with pytest.raises(NotADirectoryError):
            start()

class Refusing(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"ray_version": "99.0.0"}')

    def do_POST(self):
        self.send_error(400)

def test_one_job_submitted_twice():
    with serving(HTTPServer(("127.0.0.1", 0), Refusing)) as server:
        jobs = RayJobs(RayCluster("refusing", f"http://127.0.0.1:{server.server_port}"))
        for _ in range(2):
            with pytest.raises(RayJobRefusedError):
                jobs.submit_or_attach(JobRequest("job", "true"))
"""
SUBMITS = "tests/some/deeper/test_starts.py::test_one_job_submitted_twice"
COUNTS = "heads = 1\nnodes = 3\njobs = 1\nairflows = 1\ntrainings = 1\npython = 4\n"
ROWS = f'["total"]\n{COUNTS}["tests/some"]\n{COUNTS}'


def run(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.budget", "-c", "pytest.ini", *options]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ["PYTHONPATH"] = str(REPOSITORY)
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "tests/some/deeper"
    folder.mkdir(parents=True)
    (folder / "test_starts.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.mark.slow
def test_budget_fails_a_run_over_a_row_and_prints_the_rows(project: Path) -> None:
    printed = run(project, "--budget=rows")
    assert printed.returncode == 0 and ROWS in printed.stdout, printed.stdout + printed.stderr
    assert "Started: 1 heads, 3 nodes, 1 jobs, 1 airflows, 1 trainings, 3 python" in printed.stdout
    (project / "tests/budget.toml").write_text(ROWS.replace("jobs = 1", "", 1))
    exceeds = run(project, "--budget=check", "-n", "1", "-k", "child or job")
    assert exceeds.returncode == 1 and "2 passed" in exceeds.stdout, exceeds.stdout
    complaint = ["total: 1 jobs, and tests/budget.toml allows 0", f"       1  {SUBMITS}", "Started: 0 heads"]
    lines = exceeds.stdout.partition("= budget =")[2].splitlines()[1:4]
    assert all(map(str.startswith, lines, complaint)), lines
