"""Jobs on a real Ray head: one per submission ID, and clear errors when the cluster is unreachable."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import RayUnreachableError
from tradewind.ray_jobs.follow.follow import follow_job
from tradewind.ray_jobs.follow.log_lines import JobLog
from tradewind.ray_jobs.request import JobRequest

pytestmark = pytest.mark.ray


def follow(jobs: RayJobs, job: str) -> tuple[JobDetails | None, list[str]]:
    lines: list[str] = []
    following = follow_job(jobs.cluster, job, log=JobLog(lines.extend), notice=lambda sentence: None)
    end = asyncio.run(asyncio.wait_for(following, 240))
    return end.details, lines


def printing(code: str) -> str:
    return f"python -u -c '{code}'"


def test_a_second_submission_under_one_id_joins_the_first(jobs: RayJobs) -> None:
    request = JobRequest("once", printing("import time; print(1, flush=True); time.sleep(2)"))
    assert jobs.submit_or_attach(request)
    assert not jobs.submit_or_attach(request)
    end, lines = follow(jobs, "once")
    assert end is not None and end.status == "SUCCEEDED"
    assert lines.count("1") == 1
    assert not jobs.submit_or_attach(request)  # the head does not rerun an ended job


def test_a_finished_job_is_followed_from_its_first_line(jobs: RayJobs) -> None:
    jobs.submit_or_attach(JobRequest("finished", printing("print(2)")))
    assert follow(jobs, "finished") == follow(jobs, "finished")


def test_a_failed_job_ends_as_failed_with_its_code(jobs: RayJobs) -> None:
    jobs.submit_or_attach(JobRequest("failed", printing("raise SystemExit(3)")))
    end, _ = follow(jobs, "failed")
    assert end is not None and end.status == "FAILED"
    assert end.exit_code == 3 and "exit code 3" in end.message


def test_a_job_that_the_cluster_does_not_know_is_lost(jobs: RayJobs) -> None:
    assert jobs.details("unknown") is None
    assert follow(jobs, "unknown") == (None, [])


def test_an_unreachable_cluster_is_named_with_its_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(RayUnreachableError, match=rf"Ray cluster 'far' \({address}\) does not answer"):
        RayJobs(RayCluster("far", address))


def test_the_environment_does_not_redirect_a_client(jobs: RayJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    assert RayJobs(jobs.cluster).version().startswith("2.")
