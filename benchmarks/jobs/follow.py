"""What following costs while nothing happens: CPU and memory of the followers, requests and bytes of the head.

A few jobs run and print a line in a second, the others wait for CPUs that are taken. What the same Airflow takes
without any follower is measured first and taken away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import psutil

from benchmarks.harness import Goal, at_most, until
from benchmarks.jobs.environment import WORKER_PROCESSES, House, printer
from benchmarks.jobs.ids import HEAD_CPUS, HOLDER, RUNNING, batches, follow_dag_id, job_ids, waiting_ids
from benchmarks.jobs.proxy import Traffic
from benchmarks.report import Table, ratio, times

SPARE_WORKERS = 2
LONGEST_SETTLE_S = 300.0


@dataclass(frozen=True)
class Sample:
    """What one window of ``minutes`` took."""

    minutes: float
    cpu_seconds: float
    memory: int
    """Bytes at its end."""
    traffic: Traffic


@dataclass(frozen=True)
class Followed:
    """The cost of following ``jobs`` jobs, for each of them and minute."""

    way: str
    jobs: int
    cpu_seconds: float
    requests: float
    received: float
    memory: float
    """Bytes for each job."""
    idle_cpu: float
    """What the same processes take in a minute without any follower; it is not in ``cpu_seconds``."""
    kinds: str


_COSTS: dict[str, Callable[[Followed], float]] = {
    "CPU": lambda one: one.cpu_seconds,
    "requests": lambda one: one.requests,
    "bytes received": lambda one: one.received,
}


def cost_of(way: str, jobs: int, sample: Sample, idle: Sample) -> Followed:
    """The cost of ``sample``, less what ``idle`` took without followers."""
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
    """The sizes that a provider can have: one that does not defer has a worker process for each job."""
    most = max(sizes) if defers else WORKER_PROCESSES - SPARE_WORKERS
    return sorted({min(size, most) for size in sizes})


def submit_waiting(address: str, count: int) -> None:
    """Submit the jobs that never start, and before them the one that they wait for."""
    submit = _submitter(address)
    submit(HOLDER, HEAD_CPUS)
    for job in waiting_ids(count):
        submit(job, HEAD_CPUS)


def costs_of(house: House, sizes: Sequence[int], window: float, settle: float) -> Iterator[Followed]:
    """Measure the sizes from small to large; the followers of one stay for the next."""
    way = house.provider.name
    submit = _submitter(house.proxy.target)
    time.sleep(settle)  # what is measured next is the idle cost, without the start of Airflow in it
    idle = _sample(house, window)
    for first, size in batches(sizes):
        if house.provider.defers:  # the other's operators submit by themselves
            for job in job_ids(way, size)[first : min(size, RUNNING)]:
                submit(job, 0)
        dag_id, before = follow_dag_id(size), _arrivals(house)
        house.api.wait_for_dag(dag_id, 120.0)
        house.api.unpause(dag_id)
        run_id = house.api.trigger(dag_id)
        until(partial(_are_following, house, dag_id, run_id), f"{way}: not all of {dag_id} follow".format)
        _settle(house, settle, before if first < RUNNING else None)
        yield cost_of(way, size, _sample(house, window), idle)


def follow_table(found: Sequence[Followed]) -> Table:
    """Every size of every way beside ours of the same size, or of our largest where there is none."""
    table = Table(
        "jobs: following them, for each job and minute",
        ("way", "jobs", "CPU", "÷ ours", "requests", "÷ ours", "received", "memory"),
        notes=(
            f"Up to {RUNNING} of the jobs run and print a line in a second; the others wait for CPUs that are taken.",
            "CPU and memory (PSS, for each job): the triggerer's processes, or for google the scheduler's with its",
            "workers, less those without followers. requests, received: what comes to and from the head.",
            f"google needs a worker process for each job: no more than {WORKER_PROCESSES - SPARE_WORKERS} here.",
            "÷ ours: beside ours with as many jobs, or where there is none, with the most.",
            *(
                f"{one.way}, {one.jobs} jobs: {one.kinds}; without followers {one.idle_cpu:.2f} CPU s a minute"
                for one in found
                if one.jobs == _largest(found, one.way)
            ),
        ),
    )
    for one in sorted(found, key=lambda row: (row.way != "ours", row.way, row.jobs)):
        ours = _ours_beside(found, one.jobs)
        table.add(
            one.way,
            str(one.jobs),
            f"{one.cpu_seconds:.4f} s",
            ratio(one.cpu_seconds, ours.cpu_seconds) if ours else "-",
            f"{one.requests:.3f}",
            ratio(one.requests, ours.requests) if ours else "-",
            f"{one.received / 1000:.1f} kB",
            f"{one.memory / 1e6:.1f} MB",
        )
    return table


def follow_goals(found: Sequence[Followed]) -> Iterator[Goal]:
    """What following may cost: no more than by the peer that follows as many jobs and for which it is least."""
    for ours in (one for one in found if one.way == "ours"):
        peers = [one for one in found if one.way != "ours" and one.jobs == ours.jobs]
        for name, figure in _COSTS.items() if peers else ():
            cheapest = min(peers, key=figure)
            of_peer = figure(ours) / figure(cheapest) if figure(cheapest) else math.inf
            yield at_most(f"{name}, {ours.jobs} jobs, beside {cheapest.way}", of_peer, 1.0, times)


def _largest(found: Sequence[Followed], way: str) -> int:
    return max(one.jobs for one in found if one.way == way)


def _ours_beside(found: Sequence[Followed], jobs: int) -> Followed | None:
    ours = [one for one in found if one.way == "ours"]
    return next((one for one in ours if one.jobs == jobs), max(ours, key=lambda one: one.jobs, default=None))


def _are_following(house: House, dag_id: str, run_id: str) -> bool:
    tasks = house.api.task_instances(dag_id, run_id)
    ended = [task for task in tasks if task["state"] in ("success", "failed", "upstream_failed", "up_for_retry")]
    if ended:
        one = ended[0]
        log = house.api.task_log(dag_id, run_id, one["task_id"], one["try_number"])
        raise RuntimeError(f"{one['task_id']} of {dag_id} is {one['state']} instead of following:\n{log[-2000:]}")
    if house.provider.defers:
        return all(task["state"] == "deferred" and (task["trigger"] or {}).get("triggerer_id") for task in tasks)
    return all(task["state"] == "running" for task in tasks)


def _settle(house: House, settle: float, before: int | None) -> None:
    """Wait until the followers have connected: more than ``before``, and nobody new for ``settle`` seconds."""
    deadline, quiet_since, known = time.monotonic() + LONGEST_SETTLE_S, time.monotonic(), -1
    while time.monotonic() < min(deadline, quiet_since + settle):
        if (now := _arrivals(house)) != known or now == before:
            known, quiet_since = now, time.monotonic()
        time.sleep(0.5)


def _arrivals(house: House) -> int:
    """How often a follower has begun, as far as the head can tell; some ask for the version at each poll, too."""
    beginnings = ["POST /api/jobs/", "GET /api/jobs/*/logs/tail", *(["GET /api/version"] * house.provider.defers)]
    return sum(house.proxy.traffic.requests[kind] for kind in beginnings)


def _sample(house: House, window: float) -> Sample:
    """What the followers' processes and the head do in ``window`` seconds."""
    root = psutil.Process(house.airflow.processes["triggerer" if house.provider.defers else "scheduler"].pid)
    cpu, traffic, started = _cpu_seconds(root), house.proxy.traffic.copy(), time.monotonic()
    time.sleep(window)
    took = time.monotonic() - started
    return Sample(took / 60, _cpu_seconds(root) - cpu, _memory(root), house.proxy.traffic.since(traffic))


def _cpu_seconds(root: psutil.Process) -> float:
    return sum(_of_tree(root, lambda one: sum(one.cpu_times()[:4])))  # own and of children that have ended


def _memory(root: psutil.Process) -> int:
    return int(sum(_of_tree(root, lambda one: one.memory_full_info().pss)))


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
