"""Jobs on a real Ray head: one for each id, each log line once, and clear words when the cluster is not there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.follow import JobEnd, follow_job
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local_ray import LocalRay
from tradewind.rehearsal.processes import LocalStack

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayJobs]:
    stack = LocalStack(tmp_path_factory.mktemp("ray"))
    ray = LocalRay(stack, num_cpus=2)
    try:
        ray.start()
        yield RayJobs(RayCluster("here", ray.address))
    finally:
        stack.stop()


def follow(jobs: RayJobs, job: str) -> tuple[JobEnd, list[str]]:
    lines: list[str] = []
    end = asyncio.run(asyncio.wait_for(follow_job(jobs.cluster, job, lines.append), 120))
    return end, lines


def printing(code: str) -> str:
    return f"python -u -c '{code}'"


def test_a_second_submission_under_one_id_joins_the_first(jobs: RayJobs) -> None:
    request = JobRequest("once", printing("import time; print(1, flush=True); time.sleep(2)"))
    assert jobs.submit_or_attach(request)
    assert not jobs.submit_or_attach(request)
    end, lines = follow(jobs, "once")
    assert end.status == "SUCCEEDED"
    assert lines.count("1") == 1
    assert not jobs.submit_or_attach(request)  # nor is it run again after its end


def test_every_line_comes_once_and_in_order(jobs: RayJobs) -> None:
    code = 'import time; [(print("line", n), n % 50 or time.sleep(0.3)) for n in range(500)]; print("last", end="")'
    jobs.submit_or_attach(JobRequest("lines", printing(code)))
    end, lines = follow(jobs, "lines")
    assert end.status == "SUCCEEDED"
    assert [line for line in lines if line.startswith("line ")] == [f"line {n}" for n in range(500)]
    assert lines[-1] == "last"


def test_a_finished_job_is_followed_from_its_first_line(jobs: RayJobs) -> None:
    jobs.submit_or_attach(JobRequest("finished", printing("print(2)")))
    assert follow(jobs, "finished") == follow(jobs, "finished")


def test_a_failed_job_ends_as_failed_with_its_code(jobs: RayJobs) -> None:
    jobs.submit_or_attach(JobRequest("failed", printing("raise SystemExit(3)")))
    end, _ = follow(jobs, "failed")
    assert end.status == "FAILED"
    assert "exit code 3" in end.message


def test_a_job_that_the_cluster_does_not_know_is_lost(jobs: RayJobs) -> None:
    assert jobs.details("unknown") is None
    assert follow(jobs, "unknown")[0].status == "LOST"


def test_an_unreachable_cluster_is_named_with_its_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(RayUnreachableError, match=rf"Ray cluster 'far' \({address}\) does not answer"):
        RayJobs(RayCluster("far", address))


def test_the_environment_does_not_redirect_a_client(jobs: RayJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    assert RayJobs(jobs.cluster).version().startswith("2.")
