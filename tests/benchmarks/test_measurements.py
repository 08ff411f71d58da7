"""What the benchmarks share, conditions for a valid measurement, and their smallest runs."""

from __future__ import annotations

import json
import logging
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import ClientSession, WSServerHandshakeError, web
from aiohttp.test_utils import TestServer

from benchmarks.airflow.dags import EMPTY, EXPERIMENT, SELF_CHECK
from benchmarks.airflow.runs import Case, check
from benchmarks.fleet.rounds import KINDS, WAYS, ZONES, Round, measure
from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.harness import Goal, at_most, bench
from benchmarks.jobs import ids, lines, logs, printer, proxy
from benchmarks.outputs import experiment_of, finished_files, write
from benchmarks.plans.costs import read_bare
from benchmarks.pods.driver import OURS, PEER
from benchmarks.pods.function import train
from benchmarks.pods.measurements import Recovery, median_step, read_marks, recovery_of
from benchmarks.report import Table
from tests.fleet.fleets import REPOSITORY
from tradewind.records.record import RecordState, read_records
from tradewind.runtime.pods.timeline import TimelineEvent


def test_parts_run_in_order_and_goals_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    def part(name: str) -> Iterator[Table | Goal]:
        yield Table(f"table {name}", ("figure",))
        yield at_most(f"goal {name}", 2.0, 1.0)

    parts = {name: lambda quick, name=name: part(f"{name} {quick}") for name in "abc"}
    bench("letters", None, parts, ["--quick", "c", "--parts", "a"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("table", "goal"))]
    assert lines[:2] == ["table a True", "table c True"]
    assert [" ".join(line.split()) for line in lines[2:]] == [f"goal {name} True <= 1.00 s 2.00 s no" for name in "ac"]


@pytest.mark.parametrize(("shape", "edges"), [("chain", 49), ("lattice", 80), ("fan", 96)])
def test_graph_reads_earlier_nodes_and_last_steps_need_all(shape: str, edges: int) -> None:
    graph = SHAPES[shape](50)
    assert len(graph) == 50 and sum(map(len, graph)) == edges
    assert all(read < node for node, reads in enumerate(graph) for read in reads)
    assert len(last_steps(graph, steps_of(graph))) == (10 if shape == "lattice" else 1)


# ---- fleet


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dead"), list(zip(KINDS, (0, len(WAYS), 5, 5), strict=True)))
def test_repair_pass_replaces_only_dead_within_request_bound(kind: str, dead: int) -> None:
    measured = Round(**measure(kind, 5, 0.0))
    assert (measured.dead, measured.is_exact) == (dead * len(ZONES), True)
    assert measured.requests <= measured.bound and measured.store_requests <= 12 * len(ZONES)


# ---- plans


def test_outputs_of_a_plan_benchmark_are_finished(tmp_path: Path) -> None:
    experiment = experiment_of("fan", 5, str(tmp_path))
    write(finished_files(experiment))
    records = read_records([step.output_path for step in experiment.steps])
    assert [record.state for record in records.values()] == [RecordState.FINISHED] * 5
    assert read_bare(str(tmp_path), "fan", 5) > 0


def test_run_without_the_measured_behaviour_is_rejected() -> None:
    skipped = {"plan": "success", "step": "skipped"}
    check(Case(EXPERIMENT, "fan", 1), "success", skipped)
    check(Case(EMPTY, "fan", 1), "success", {"step": "success"})
    check(Case(SELF_CHECK, "fan", 2), "running", {"one": "skipped", "two": None})
    for kind, states in ((EXPERIMENT, {**skipped, "step": "success"}), (EMPTY, {"step": "skipped"})):
        with pytest.raises(RuntimeError, match="were to be"):
            check(Case(kind, "fan", 1), "success", states)
    with pytest.raises(RuntimeError, match="it was running"):
        check(Case(SELF_CHECK, "fan", 2), "running", {"one": "failed", "two": None})


# ---- pods


def mark(pid: int, event: str, at: float, step: int | None = None) -> dict[str, object]:
    return {"rank": pid % 2, "pid": pid, "event": event, "at": at, "step": step}


KILLED_AT_100 = [
    *(mark(1, "saved", at, step) for at, step in ((94.0, 35), (95.0, 38), (97.0, 40))),
    *(mark(pid, "step", 97.0 + step / 10 + pid / 10, 41 + step) for step in range(10) for pid in (1, 2)),
    mark(2, "step", 99.5, 51),
    *(mark(pid, event, at) for pid in (3, 4) for event, at in (("begun", 107.0), ("loaded", 109.0))),
    mark(3, "step", 110.0, 41),
    mark(4, "step", 110.5, 42),
]


def test_recovery_is_split_by_function_marks_and_pod_timeline() -> None:
    events = [TimelineEvent("reserved", at) for at in (10.0, 103.0)] + [TimelineEvent("preempted", 102.5, end_s=0.5)]
    ours = recovery_of(OURS, 100.0, KILLED_AT_100, events)
    assert ours == Recovery(
        "ours", 10.5, 2.0, 1.5, 10, pytest.approx(2.2), 2.0, detect=2.0, end=0.5, reserve=0.5, start=4.0
    )
    peer = recovery_of(PEER, 100.0, KILLED_AT_100)
    assert peer is not None and (peer.total, peer.detect) == (10.5, None)
    assert recovery_of(PEER, 100.0, KILLED_AT_100[:-1]) is None, "one host does not train yet"


@pytest.mark.long
@pytest.mark.slow
def test_benchmark_pod_function_resumes_from_checkpoint(tmp_path: Path) -> None:
    for _ in range(2):
        train(str(tmp_path), 2.5, rank=0)
    marks = read_marks(tmp_path)
    loaded = [mark["step"] for mark in marks if mark["event"] == "loaded"]
    assert loaded[0] == 0 < loaded[1]
    assert 0 < median_step(marks, 0.0, time.time()) < 5


# ---- jobs


def log_record(at: float, *lines: str) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat()
    return json.dumps({"timestamp": moment, "level": "info", "event": "\n".join(lines), "logger": "ray.job"})


def job_line(number: int, printed: float) -> str:
    return printer.LINE.format(number=number, printed=printed, padding=printer.PADDING)


def test_lines_are_parsed_from_whole_records_not_torn_ones() -> None:
    records = [log_record(12.5, job_line(0, 10.0)), log_record(13.0, job_line(1, 11.0), "other", job_line(2, 12.0))]
    torn = log_record(14.0, job_line(3, 13.0))[:-5]
    parsed = list(logs.lines_in([*records, "plain text", torn]))
    assert [(line.number, line.printed, line.logged) for line in parsed] == [(0, 10, 12.5), (1, 11, 13), (2, 12, 13)]


def test_lost_repeated_and_reordered_lines_are_counted() -> None:
    logged = [logs.LoggedLine(number, 10.0 + number, 20.0 + number) for number in (0, 1, 1, 3, 2)]
    result = lines.carried(logged, 6)
    assert (result.lost, result.repeated, result.in_order) == (2, 1, False)
    assert result.lines_per_second == pytest.approx(4 / 13) and result.last_lag == pytest.approx(10.0)
    assert lines.carried(logged[:2], 2).in_order and lines.carried([], 2).lost == 2


def test_task_log_merges_worker_and_triggerer_files(tmp_path: Path) -> None:
    folder = tmp_path / "dag_id=d" / "run_id=r" / "task_id=t"
    folder.mkdir(parents=True)
    (folder / "attempt=1.log").write_text(log_record(30.0, job_line(1, 29.0)) + "\n")
    (folder / "attempt=1.log.trigger.7.log").write_text(log_record(20.0, job_line(0, 19.0)) + "\n")
    assert [line.number for line in logs.lines_of_task(tmp_path, "d", "r", "t")] == [0, 1]
    assert logs.fired_at(tmp_path, "d", "r", "t") is None
    (folder / "attempt=1.log.trigger.7.log").write_text(log_record(25.0, "Trigger fired event") + "\n")
    assert logs.fired_at(tmp_path, "d", "r", "t") == 25.0


async def test_proxy_forwards_and_counts_bodies_refusals_websockets() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), status=201)

    async def tail(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("one line\n")
        return socket

    app = web.Application()
    app.router.add_post("/api/jobs/", echo)
    app.router.add_get("/api/jobs/some-job/logs/tail", tail)
    async with TestServer(app) as head, ClientSession() as client:
        with proxy.CountingProxy(str(head.make_url("/"))) as counting:
            async with client.post(f"{counting.address}/api/jobs/?a=1", data=b"x" * 200_000) as answer:
                assert answer.status == 201 and await answer.read() == b"x" * 200_000
            async with client.ws_connect(f"{counting.address}/api/jobs/some-job/logs/tail") as socket:
                assert [message.data async for message in socket] == ["one line\n"]
            with pytest.raises(WSServerHandshakeError) as refusal:
                await client.ws_connect(f"{counting.address}/api/jobs/unknown/logs/tail")
            assert refusal.value.status == 404
    assert counting.traffic.requests == {"POST /api/jobs/": 1, "GET /api/jobs/*/logs/tail": 2}
    assert counting.traffic.received == 200_000 + len("one line\n")


@pytest.mark.slow
def test_dag_file_passes_the_arguments_of_the_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ids.SIZES_VARIABLE, "[6]")
    from benchmarks.jobs.dags import ours
    from tradewind.triggers.ray_job import RayJobTrigger

    for job in ids.job_ids("ours", 6):
        arguments = ours.trigger_kwargs(job)
        assert RayJobTrigger(**arguments).serialize()[1] == arguments


# ---- every benchmark


JOBS = "--providers ours --parts latency lines"
STARTS = {
    "benchmarks": ("", ["plain+root", "lattice 1,000", "reuse: a run"]),
    "benchmarks.data": ("", ["map, beside a loop of processes", "a row, beside Ray Data", "100 finished shards"]),
    "benchmarks.fleet": ("", ["repair: one round", "jobs lost", "update-configs"]),
    "benchmarks.jobs": (JOBS, ["jobs: goals"]),
    "benchmarks.plans": ("", [" 100 get, 100 read\n", "one bare call", "a check in each task, gs"]),
    "benchmarks.pods": ("", ["detection of a lost slice", "overhead of the runner"]),
    "benchmarks.train": ("", ["4 files, beside huggingface_hub", "100 finished files", "steps, beside"]),
}


@pytest.mark.long
@pytest.mark.airflow
@pytest.mark.ray
@pytest.mark.parametrize("module", STARTS)
def test_benchmark_prints_its_figures_at_the_smallest_size(module: str) -> None:
    options, figures = STARTS[module]
    command = [sys.executable, "-m", module, "--quick", *options.split()]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.returncode == 0 and all(figure in ended.stdout for figure in figures), ended.stdout + ended.stderr


@pytest.mark.parametrize("module", STARTS)
def test_unknown_part_is_refused_by_every_benchmark(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "sprase"])
    with pytest.raises(SystemExit):
        runpy.run_module(module, run_name="__main__")
    logging.disable(logging.NOTSET)
    assert "there is no part sprase; there are " in capsys.readouterr().err
