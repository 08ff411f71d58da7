"""Cost of following jobs without events: CPU and memory of the followers, requests and bytes of the head.

A few jobs run and print a line per second; the others wait for occupied CPUs. The cost of the same Airflow without any
follower is measured first and subtracted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from benchmarks.harness import Goal, at_most, until
from benchmarks.jobs.environment import WORKER_PROCESSES, JobsEnvironment, printer
from benchmarks.jobs.ids import HEAD_CPUS, HOLDER, RUNNING, batches, follow_dag_id, job_ids, waiting_ids
from benchmarks.jobs.proxy import Traffic
from benchmarks.report import Table, ratio, times

SPARE_WORKERS = 2
LONGEST_SETTLE_S = 300.0


@dataclass(frozen=True)
class Sample:
    """Cost of one window of ``minutes``."""

    minutes: float
    cpu_seconds: float
    memory: int
    """Bytes at its end."""
    traffic: Traffic


@dataclass(frozen=True)
class Followed:
    """Cost of following ``jobs`` jobs, per job and minute."""

    way: str
    jobs: int
    cpu_seconds: float
    requests: float
    received: float
    memory: float
    """Bytes for each job."""
    idle_cpu: float
    """CPU seconds per minute of the same processes without any follower; not in ``cpu_seconds``."""
    kinds: str


_COSTS: dict[str, Callable[[Followed], float]] = {
    "CPU": lambda cost: cost.cpu_seconds,
    "requests": lambda cost: cost.requests,
    "bytes received": lambda cost: cost.received,
}


def cost_of(way: str, jobs: int, sample: Sample, idle: Sample) -> Followed:
    """Return the cost of ``sample`` less that of ``idle``, without followers."""
    job_minutes = jobs * sample.minutes
    idle_cpu = idle.cpu_seconds / idle.minutes * sample.minutes
    kinds = ", ".join(f"{count} {kind}" for kind, count in sample.traffic.requests.most_common(4))
    return Followed(
        way,
        jobs,
        cpu_seconds=max(0.0, sample.cpu_seconds - idle_cpu) / job_minutes,
        requests=sample.traffic.total / job_minutes,
        received=sample.traffic.received / job_minutes,
        memory=max(0, sample.memory - idle.memory) / jobs,
        idle_cpu=idle.cpu_seconds / idle.minutes,
        kinds=f"{kinds or 'no requests'} in {sample.minutes * 60:.0f} s",
    )


def sizes_for(defers: bool, sizes: Sequence[int]) -> list[int]:
    """Return the possible sizes of a provider: without deferral, each job needs a worker process."""
    most = max(sizes) if defers else WORKER_PROCESSES - SPARE_WORKERS
    return sorted({min(size, most) for size in sizes})


def submit_waiting(address: str, count: int) -> None:
    """Submit the job that holds all CPUs, and then the jobs that never start."""
    submit = _submitter(address)
    submit(HOLDER, HEAD_CPUS)
    for job in waiting_ids(count):
        submit(job, HEAD_CPUS)


def costs_of(environment: JobsEnvironment, sizes: Sequence[int], window: float, settle: float) -> Iterator[Followed]:
    """Measure the sizes from small to large; the followers of one stay for the next."""
    way = environment.provider.name
    submit = _submitter(environment.proxy.target)
    time.sleep(settle)  # the idle cost excludes the start of Airflow
    idle = _sample(environment, window)
    for first, size in batches(sizes):
        if environment.provider.defers:  # otherwise the operators submit the jobs
            for job in job_ids(way, size)[first : min(size, RUNNING)]:
                submit(job, 0)
        dag_id, before = follow_dag_id(size), _arrivals(environment)
        environment.api.wait_for_dag(dag_id, 120.0)
        environment.api.unpause(dag_id)
        run_id = environment.api.trigger(dag_id)
        until(partial(_are_following, environment, dag_id, run_id), f"{way}: not all of {dag_id} follow".format)
        _settle(environment, settle, before if first < RUNNING else None)
        yield cost_of(way, size, _sample(environment, window), idle)


def follow_table(rows: Sequence[Followed]) -> Table:
    """Return each size of each way, compared with Tradewind's same size or else its largest."""
    table = Table(
        "jobs: following them, for each job and minute",
        ("way", "jobs", "CPU", "÷ ours", "requests", "÷ ours", "received", "memory"),
        notes=(
            f"Up to {RUNNING} of the jobs run and print a line per second; the others wait for occupied CPUs.",
            "CPU and memory (PSS, for each job): the triggerer's processes, or for google the scheduler's with its",
            "workers, less those without followers. requests, received: to and from the head.",
            f"google needs a worker process for each job: at most {WORKER_PROCESSES - SPARE_WORKERS} here.",
            "÷ ours: beside ours with as many jobs, or where there is none, with the most.",
            *(
                f"{row.way}, {row.jobs} jobs: {row.kinds}; without followers {row.idle_cpu:.2f} CPU s a minute"
                for row in rows
                if row.jobs == _largest(rows, row.way)
            ),
        ),
    )
    for row in sorted(rows, key=lambda row: (row.way != "ours", row.way, row.jobs)):
        ours = _ours_beside(rows, row.jobs)
        table.add(
            row.way,
            str(row.jobs),
            f"{row.cpu_seconds:.4f} s",
            ratio(row.cpu_seconds, ours.cpu_seconds) if ours else "-",
            f"{row.requests:.3f}",
            ratio(row.requests, ours.requests) if ours else "-",
            f"{row.received / 1000:.1f} kB",
            f"{row.memory / 1e6:.1f} MB",
        )
    return table


def follow_goals(rows: Sequence[Followed]) -> Iterator[Goal]:
    """Yield the limits of following: at most the cost of the cheapest peer with as many jobs."""
    for ours in (row for row in rows if row.way == "ours"):
        peers = [row for row in rows if row.way != "ours" and row.jobs == ours.jobs]
        for name, figure in _COSTS.items() if peers else ():
            cheapest = min(peers, key=figure)
            of_peer = figure(ours) / figure(cheapest) if figure(cheapest) else math.inf
            yield at_most(f"{name}, {ours.jobs} jobs, beside {cheapest.way}", of_peer, 1.0, times)


def _largest(rows: Sequence[Followed], way: str) -> int:
    return max(row.jobs for row in rows if row.way == way)


def _ours_beside(rows: Sequence[Followed], jobs: int) -> Followed | None:
    ours = [row for row in rows if row.way == "ours"]
    return next((row for row in ours if row.jobs == jobs), max(ours, key=lambda row: row.jobs, default=None))


def _are_following(environment: JobsEnvironment, dag_id: str, run_id: str) -> bool:
    tasks = environment.api.task_instances(dag_id, run_id)
    ended = [task for task in tasks if task["state"] in ("success", "failed", "upstream_failed", "up_for_retry")]
    if ended:
        task = ended[0]
        log = environment.api.task_log(dag_id, run_id, task["task_id"], task["try_number"])
        raise RuntimeError(f"{task['task_id']} of {dag_id} is {task['state']} instead of following:\n{log[-2000:]}")
    if environment.provider.defers:
        return all(task["state"] == "deferred" and (task["trigger"] or {}).get("triggerer_id") for task in tasks)
    return all(task["state"] == "running" for task in tasks)


def _settle(environment: JobsEnvironment, settle: float, before: int | None) -> None:
    """Wait until the followers have connected: more than ``before``, and no new one for ``settle`` seconds."""
    deadline, quiet_since, known = time.monotonic() + LONGEST_SETTLE_S, time.monotonic(), -1
    while time.monotonic() < min(deadline, quiet_since + settle):
        if (now := _arrivals(environment)) != known or now == before:
            known, quiet_since = now, time.monotonic()
        time.sleep(0.5)


def _arrivals(environment: JobsEnvironment) -> int:
    """Return how many followers have begun, by their first requests; some request the version at each poll."""
    beginnings = ["POST /api/jobs/", "GET /api/jobs/*/logs/tail", *(["GET /api/version"] * environment.provider.defers)]
    return sum(environment.proxy.traffic.requests[kind] for kind in beginnings)


def _sample(environment: JobsEnvironment, window: float) -> Sample:
    """Measure the followers' processes and the head for ``window`` seconds."""
    component = "triggerer" if environment.provider.defers else "scheduler"
    root = psutil.Process(environment.airflow.processes[component].pid)
    cpu, traffic, started = _cpu_seconds(root), environment.proxy.traffic.copy(), time.monotonic()
    time.sleep(window)
    took = time.monotonic() - started
    return Sample(took / 60, _cpu_seconds(root) - cpu, _memory(root), environment.proxy.traffic.since(traffic))


def _cpu_seconds(root: psutil.Process) -> float:
    return sum(_of_tree(root, lambda process: sum(process.cpu_times()[:4])))  # own and of children that have ended


def _memory(root: psutil.Process) -> int:
    return int(sum(_of_tree(root, lambda process: process.memory_full_info().pss)))


def _of_tree(root: psutil.Process, figure: Callable[[psutil.Process], float]) -> Iterator[float]:
    for process in [root, *root.children(recursive=True)]:
        try:
            yield figure(process)
        except psutil.Error:  # ended meanwhile
            continue


def _submitter(address: str) -> Callable[[str, int], None]:
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(address)

    def submit(job: str, num_cpus: int) -> None:
        client.submit_job(entrypoint=printer(36_000, 1.0), submission_id=job, entrypoint_num_cpus=num_cpus)

    return submit
