"""SIGKILL of a node and of the head at each boundary of a step's pipeline: nothing that is whole is made twice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.datasets.held_words import SHARDS, WORDS, Config, files, hold_end, make_inputs, processes, times, words
from tests.ray_jobs.ended_jobs import ended_job
from tests.runtime.driven import BRISK_S, REPOSITORY, claim, file_of
from tests.support.claims import driver_arguments
from tests.support.clusters import HASTY
from tests.support.waiting import until
from tradewind import this_output_path
from tradewind.datasets import create_backend, dataset_step
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.request import JobRequest
from tradewind.records.attempts import Attempt, AttemptOutcome, read_attempt
from tradewind.records.record import RecordState, read_record
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.steps import ResolvedStep, resolve

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]

AT_WORK = 2
POINTS = {
    "within scatter": ["6-3"],
    "between scatter and merge": ["4-0", "4-1"],
    "within merge": ["4-2"],
    "after merge": ["end"],
}
"""Where the step is held. Between the stages, as many shards of the merge as may be at work have just begun."""


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[LocalRay]:
    stack = LocalStack(tmp_path / "ray")
    ray = LocalRay(stack, token="", num_cpus=0, env={**HASTY, "PYTHONPATH": str(REPOSITORY)})
    try:
        ray.start()
        yield ray
    finally:
        stack.stop()


def submitted(ray: LocalRay, step: ResolvedStep) -> Attempt:
    """Start the step's next attempt: its driver is a job on the head's node."""
    attempt = claim(step, BRISK_S)
    command = shlex.join(["python", "-u", "-m", "tradewind.runtime.run_step", *driver_arguments(attempt)])
    RayJobs(RayCluster("here", ray.address)).submit_or_attach(JobRequest(attempt.job, command, num_cpus=0.0))
    return attempt


def node_of(ray: LocalRay, process: int) -> int:
    return next(at for at in range(2) if process in [one.pid for one in ray.host_stack("pool", at).processes()])


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("lost", ["node", "head"])
def test_lost_part_costs_only_shards_at_work(ray: LocalRay, tmp_path: Path, lost: str, point: str) -> None:
    """A head with a step as its job: what a lost driver alone leaves, ``test_pipelines_on_ray`` shows."""
    root, held = tmp_path / "root", POINTS[point]
    root.mkdir()
    make_inputs(root)
    for each in held:
        (root / f"held-{each}").touch()
    config = Config(str(root), this_output_path())
    options = {"max_parallelism": AT_WORK, "memory": "100MB", "finish": hold_end}
    step = resolve([made := dataset_step("words", words, config, **options)], str(tmp_path / "store")).of(made)
    ray.start_hosts("pool", 2)
    attempt = submitted(ray, step)
    workers = [until(lambda each=each: processes(root, each), f"point {each}")[0] for each in held]

    if lost == "node":
        ray.kill_host("pool", 0 if point == "after merge" else node_of(ray, workers[0]))
    else:
        ray.kill_head()
        ray.kill_slice("pool")
    for each in held:
        (root / f"held-{each}").unlink()
    if lost == "head":
        ray.start_head()
        ray.start_hosts("new", 1)
        until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK, "the lease to be stale")
        attempt = submitted(ray, step)
    _, log = ended_job(RayJobs(RayCluster("here", ray.address)), attempt.job)

    ended = read_attempt(file_of(attempt))
    assert ended is not None and ended.outcome is AttemptOutcome.SUCCEEDED, log
    assert ended.number == (1 if lost == "node" else 2)
    made = times(root)
    again = [name for name, count in made.items() for _ in range(count - 1)]
    assert len(made) == SHARDS + WORDS + 1 and len(again) <= AT_WORK, made
    assert all(name.partition("-")[0] == held[0].partition("-")[0] for name in again), "no shard of another stage"
    assert lost == "head" or point == "after merge" or any("lost" in line for line in log), log
    create_backend("sync").execute(words(Config(str(root), f"{tmp_path}/here")))
    assert files(Path(step.output_path)) == files(tmp_path / "here")
