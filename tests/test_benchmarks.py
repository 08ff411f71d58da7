"""The benchmarks run and print the rows that they promise; how long anything takes is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import ClientSession, WSServerHandshakeError, web
from aiohttp.test_utils import TestServer

from benchmarks import (
    jobs_follow,
    jobs_goals,
    jobs_house,
    jobs_ids,
    jobs_latency,
    jobs_lines,
    jobs_logs,
    jobs_printer,
    jobs_proxy,
    plans,
    plans_goals,
    plans_once,
    plans_runs,
    plans_store,
    pods_function,
    pods_goals,
    pods_runs,
    run,
)
from benchmarks.graphs import SHAPES, edge_count, last_steps, steps_of
from benchmarks.plans_costs import CLOUD, LOCAL, Planned, plans_table
from benchmarks.plans_dags import EXPERIMENT, ONE_CALL, SELF_CHECK
from benchmarks.pods_marks import Recovery, median_step, read_marks, recovery_of
from benchmarks.report import Table, ratio, seconds
from tradewind.records.reading import read_records
from tradewind.records.record import RecordState


def rows_of(output: str) -> set[str]:
    """The first two words of every line, which is what a row's first cell is made of."""
    return {" ".join(line.split()[:2]) for line in output.splitlines()}


def test_resolve_prints_a_small_and_a_large_experiment_of_each_shape(capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--quick", "resolve"])
    output = capsys.readouterr().out
    assert {f"{shape} {count}" for shape in SHAPES for count in ("100", "1,000")} <= rows_of(output)
    assert "÷ bound" in output and "µs/step" in output


@pytest.mark.slow
def test_parse_prints_the_experiment_beside_its_peers(capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--quick", "parse"])
    output = capsys.readouterr().out
    kinds = ("plain", "plain+root", "experiment")
    assert {f"chain {kind}" for kind in kinds} <= rows_of(output)
    assert "÷ plain" in output and "+ tradewind" in output


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["sprase"])
    assert "there is no benchmark sprase; there are parse, resolve, reuse." in capsys.readouterr().err


@pytest.mark.parametrize(("shape", "edges"), [("chain", 49), ("lattice", 80), ("fan", 96)])
def test_a_graph_reads_only_nodes_before_and_its_last_steps_need_all(shape: str, edges: int) -> None:
    graph = SHAPES[shape](50)
    assert len(graph) == 50 and edge_count(graph) == edges
    assert all(read < node for node, reads in enumerate(graph) for read in reads)
    steps = steps_of(graph)
    assert len(last_steps(graph, steps)) == (10 if shape == "lattice" else 1)


def test_a_table_aligns_names_left_and_figures_right() -> None:
    table = Table("title", ("name", "time"), notes=("A note.",))
    table.add("short", seconds(0.5))
    table.add("rather long", seconds(12))
    lines = table.text().splitlines()
    assert lines[2] == "name            time"
    assert lines[4] == "short         500 ms"
    assert lines[5] == "rather long  12.00 s"
    assert lines[-1] == "  A note."


def test_a_ratio_has_two_digits_after_the_point_only_while_they_matter() -> None:
    assert [ratio(1, 3), ratio(25, 1), ratio(1, 0)] == ["0.33", "25", "inf"]


def log_record(at: float, *lines: str) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat()
    return json.dumps({"timestamp": moment, "level": "info", "event": "\n".join(lines), "logger": "ray.job"})


def job_line(number: int, printed: float) -> str:
    return jobs_printer.LINE.format(number=number, printed=printed, padding=jobs_printer.PADDING)


def test_a_jobs_lines_are_found_one_or_many_in_a_record_and_never_in_a_torn_one() -> None:
    records = [log_record(12.5, job_line(0, 10.0)), log_record(13.0, job_line(1, 11.0), "other", job_line(2, 12.0))]
    torn = log_record(14.0, job_line(3, 13.0))[:-5]
    seen = list(jobs_logs.lines_in([*records, "plain text", torn]))
    assert [(line.number, line.printed, line.logged) for line in seen] == [(0, 10, 12.5), (1, 11, 13), (2, 12, 13)]


def test_lines_that_are_lost_repeated_or_out_of_order_are_counted() -> None:
    seen = [jobs_logs.Seen(number, 10.0 + number, 20.0 + number) for number in (0, 1, 1, 3, 2)]
    result = jobs_logs.carried(seen, 6)
    assert (result.lost, result.repeated, result.in_order) == (2, 1, False)
    assert result.lines_per_second == pytest.approx(4 / 13) and result.last_lag == pytest.approx(10.0)
    assert jobs_logs.carried(seen[:2], 2).in_order and jobs_logs.carried([], 2).lost == 2


def test_the_log_of_a_task_is_put_together_from_the_workers_and_the_triggerers_files(tmp_path: Path) -> None:
    folder = tmp_path / "dag_id=d" / "run_id=r" / "task_id=t"
    folder.mkdir(parents=True)
    (folder / "attempt=1.log").write_text(log_record(30.0, job_line(1, 29.0)) + "\n")
    (folder / "attempt=1.log.trigger.7.log").write_text(log_record(20.0, job_line(0, 19.0)) + "\n")
    assert [line.number for line in jobs_logs.lines_of_task(tmp_path, "d", "r", "t")] == [0, 1]
    assert jobs_logs.fired_at(tmp_path, "d", "r", "t") is None
    (folder / "attempt=1.log.trigger.7.log").write_text(log_record(25.0, "Trigger fired event") + "\n")
    assert jobs_logs.fired_at(tmp_path, "d", "r", "t") == 25.0


def test_the_printer_prints_as_many_lines_as_it_is_told() -> None:
    command = [sys.executable, jobs_printer.__file__, "5", "1000"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    record = log_record(time.time(), printed)
    assert [line.number for line in jobs_logs.lines_in([record])] == [0, 1, 2, 3, 4]


def test_followers_of_a_size_include_those_of_the_smaller_ones() -> None:
    everything = jobs_ids.job_ids("ours", 10)
    parts = [jobs_ids.job_ids("ours", size)[first:] for first, size in jobs_ids.batches([10, 1, 6])]
    assert sum(parts, []) == everything and [len(part) for part in parts] == [1, 5, 4]
    assert [job.startswith("ours-") for job in everything] == [True] * 4 + [False] * 6
    assert jobs_ids.batches([]) == []


def test_one_that_does_not_defer_follows_no_more_jobs_than_it_has_workers() -> None:
    assert jobs_follow.sizes_for(True, [1, 300]) == [1, 300]
    assert jobs_follow.sizes_for(False, [1, 50, 300]) == [1, 8]


def test_the_cost_of_following_is_for_each_job_and_minute_without_what_an_idle_airflow_takes() -> None:
    idle = jobs_follow.Sample(0.5, 1.0, 1000, jobs_proxy.Traffic())
    traffic = jobs_proxy.Traffic(Counter({"GET /api/jobs/": 8}), 4000)
    cost = jobs_follow.cost_of("ours", 10, jobs_follow.Sample(2.0, 24.0, 3000, traffic), idle)
    assert (cost.cpu_seconds, cost.requests, cost.received, cost.memory) == (1.0, 0.4, 200.0, 200.0)
    assert cost.kinds == "8 GET /api/jobs/ in 120 s" and cost.idle_cpu == 2.0


def test_goals_are_judged_by_the_figures_of_the_run() -> None:
    latencies = [
        jobs_latency.Latency("ray job submit", 1, 1, 2.0, 0.1, None, 4.0, 0.0),
        jobs_latency.Latency("ours", 1, 1, 2.0, 0.1, 1.5, 8.5, 3.0),
    ]
    followed = [
        jobs_follow.Followed("ours", 300, 0.1, 0.01, 2.0, 1.0, 0.5, ""),
        jobs_follow.Followed("astro", 300, 0.1, 0.4, 1.0, 1.0, 0.5, ""),
        jobs_follow.Followed("google", 8, 0.1, 20.0, 1.0, 1.0, 0.5, ""),
    ]
    rate = jobs_lines.Rate(2000, 10)
    lines = [jobs_lines.Lines("ours", rate, jobs_logs.Carried(20_000, 1, 0, True, 1900.0, 0.5))]
    rows = jobs_goals.goals_table(latencies, followed, lines).rows
    assert [(row[2], row[3]) for row in rows] == [
        ("+1.50 s", "no"),
        ("1.50 s", "yes"),
        ("1.00 times", "yes"),
        ("0.02 times", "yes"),
        ("2.00 times", "no"),
        ("1 lost, 0 repeated", "no"),
    ]


def test_tables_put_ours_first_and_every_peer_beside_it() -> None:
    runs = [jobs_house.TaskRun(2.0, 0.5, 4.0, 1.5, []), jobs_house.TaskRun(None, None, 6.0, None, [])]
    latencies = [
        jobs_latency.median_of("google", 1, runs, 0.1),
        jobs_latency.median_of("ours", 1, runs[:1], 3.0),
        jobs_latency.median_of("ray job submit", 1, runs[:1], 0.0),
    ]
    table = jobs_latency.latency_table(latencies, [1])
    assert [row[0] for row in table.rows] == ["ray job submit", "ours", "google"]
    assert table.rows[2][3] == "never" and list(table.rows[2][6:9]) == ["1.50 s", "5.00 s", "1.25"]
    assert table.rows[2][10] == "+0.90 s"


async def test_the_proxy_passes_bodies_refusals_and_websockets_and_counts_them() -> None:
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
        with jobs_proxy.CountingProxy(str(head.make_url("/"))) as proxy:
            async with client.post(f"{proxy.address}/api/jobs/?a=1", data=b"x" * 200_000) as answer:
                assert answer.status == 201 and await answer.read() == b"x" * 200_000
            async with client.ws_connect(f"{proxy.address}/api/jobs/some-job/logs/tail") as socket:
                assert [message.data async for message in socket] == ["one line\n"]
            with pytest.raises(WSServerHandshakeError) as refusal:
                await client.ws_connect(f"{proxy.address}/api/jobs/unknown/logs/tail")
            assert refusal.value.status == 404
    assert proxy.traffic.requests == {"POST /api/jobs/": 1, "GET /api/jobs/*/logs/tail": 2}
    assert proxy.traffic.received == 200_000 + len("one line\n")


@pytest.mark.slow
def test_our_dag_file_gives_our_trigger_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jobs_ids.SIZES_VARIABLE, "[6]")
    from benchmarks.jobs_dags import ours
    from tradewind.triggers.ray_job import RayJobTrigger

    for job in jobs_ids.job_ids("ours", 6):
        given = ours.trigger_kwargs(job)
        assert RayJobTrigger(**given).serialize()[1] == given


def test_the_outputs_of_a_plan_benchmark_are_finished_ones(tmp_path: Path) -> None:
    experiment = plans_store.experiment_of("fan", 5, str(tmp_path))
    plans_store.write_finished(experiment)
    records = read_records([step.output_path for step in experiment.steps])
    assert [record.state for record in records.values()] == [RecordState.FINISHED] * 5
    assert plans_once.read_bare(str(tmp_path), "fan", 5)["read"] > 0


@pytest.mark.slow
def test_a_plan_of_finished_steps_lists_nothing_and_reads_one_object_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plans.main(["--quick", "--parts", "plans"])
    output = capsys.readouterr().out
    assert {"local 100", "gs:// 100", "plans: goals"} <= rows_of(output)
    assert " 100 get, 100 read\n" in output


def planned(store: str, steps: int, time: float, **requests: int) -> Planned:
    return Planned(store, steps, 0.0, time, 0.0, time, time / 2, 600.0, 100.0, 1.0, requests)


def runs_of(kind: str, count: int, *times: float, done: int | None = None) -> list[plans_runs.Run]:
    case = plans_runs.Case(kind, count)
    return [plans_runs.Run(case, time, count if done is None else done, count) for time in times]


def test_goals_of_plans_are_judged_by_time_listings_memory_and_both_peers() -> None:
    found = [
        planned(LOCAL, 1_000, 9.0),
        planned(CLOUD, 1_000, 2.5, read=1000, list=30),
        planned(CLOUD, 100, 1, list=22),
    ]
    runs = [
        *runs_of(EXPERIMENT, 1_000, 4.0, 3.0, 9.0),
        *runs_of(ONE_CALL, 1_000, 2.0),
        *runs_of(EXPERIMENT, 500, 2.0),
        *runs_of(SELF_CHECK, 500, 30.0, done=100),
    ]
    rows = [row[1:] for row in plans_goals.goals_table(found, runs).rows]
    assert rows == [
        ("< 500 MB", "600 MB", "no"),
        ("< 2 s", "2.50 s", "no"),
        ("<= 30", "30", "yes"),
        ("< 500 MB", "600 MB", "no"),
        ("<= 21", "22", "no"),
        ("< 500 MB", "600 MB", "no"),
        ("<= 1.5 times", "2.00 times", "no"),
        (">= 50 times faster", "75.0 times", "yes"),
    ]


def test_a_run_that_was_given_up_is_marked_and_counted_at_its_speed() -> None:
    runs = [*runs_of(EXPERIMENT, 500, 2.0), *runs_of(SELF_CHECK, 500, 30.0, done=100)]
    rows = plans_runs.runs_table(runs).rows
    assert list(rows[0]) == ["local 500 experiment", "1", "2.00 s", "1.00", "500 of 500"]
    assert list(rows[1]) == ["local 500 self-check", "1", "~ 150.00 s", "~ 75", "100 of 500"]


def test_a_plan_is_told_with_its_requests_and_beside_its_bound() -> None:
    local, cloud = plans_table([planned(LOCAL, 10, 1.0), planned(CLOUD, 10, 2.0, read=20, get=10)]).rows
    assert (local[0], local[7], local[-1]) == ("local 10", "2.00", "-")
    assert (cloud[0], cloud[-1]) == ("gs:// 10", "10 get, 20 read")


def test_what_goes_on_after_it_was_given_up_has_an_airflow_of_its_own() -> None:
    first, *others = plans_runs.Size(1_000, 500, 2, 1.0).airflows()
    assert [case.kind for case in first] == [EXPERIMENT] * 4 + [EXPERIMENT, ONE_CALL] * 2
    assert [case.count for case in first] == [500] * 4 + [1_000] * 4
    assert [[(case.kind, case.count) for case in cases] for cases in others] == [[(SELF_CHECK, 500)]] * 2
    every = sum(others, first)
    assert len({case.dag_id for case in every}) == len(set(every)) == 6


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


def test_a_recovery_is_split_by_the_marks_of_the_function_and_the_timeline_of_the_runner() -> None:
    events = [
        {"event": "reserved", "at": 10.0},
        {"event": "reserved", "at": 103.0},
        {"event": "preempted", "at": 102.5, "end_s": 0.5},
    ]
    ours = recovery_of(pods_runs.OURS, 100.0, KILLED_AT_100, events)
    assert ours == Recovery(
        "ours", 10.5, 2.0, 1.5, 10, pytest.approx(2.2), 2.0, detect=2.0, end=0.5, reserve=0.5, start=4.0
    )
    peer = recovery_of(pods_runs.PEER, 100.0, KILLED_AT_100)
    assert peer is not None and (peer.total, peer.detect) == (10.5, None)
    assert recovery_of(pods_runs.PEER, 100.0, KILLED_AT_100[:-1]) is None, "one host does not train yet"


def test_goals_of_pods_are_judged_by_detection_by_the_peer_and_by_the_time_of_a_step() -> None:
    parts = {"detect": 1.5, "end": 1.0, "reserve": 0.0, "start": 6.5}
    ours = Recovery(pods_runs.OURS, 12.0, 2.0, 1.0, lost=3, lost_s=1.1, interval_s=1.05, **parts)
    peer = Recovery(pods_runs.PEER, 20.0, 2.0, 1.0, lost=5, lost_s=0.7, interval_s=1.0)
    kills = [pods_runs.Kill(one.runner, one) for one in (ours, peer)]
    pairs = [pods_runs.Pair(0.1005, 0.1), pods_runs.Pair(0.2, 0.1), pods_runs.Pair(0.1001, 0.1)]
    rows = [row[1:] for row in pods_goals.goals_table(kills, pairs).rows]
    assert rows == [
        ("< 3 s", "1.50 s", "yes"),
        ("<= 1.05 s, the checkpoint interval", "1.10 s", "no"),
        ("<= 0.5 times", "0.60 times", "no"),
        ("< 1%", "+0.50%", "yes"),
    ]
    table = pods_goals.recovery_table([*kills, pods_runs.Kill(pods_runs.PEER, None)]).rows
    assert list(table[1]) == ["JaxTrainer", "2", "1", "20.00 s", "0.60", *["-"] * 4, "2.00 s", "1.00 s", "<= 5"]


def test_a_runner_that_never_recovers_has_a_row_without_figures() -> None:
    [row] = pods_goals.recovery_table([pods_runs.Kill(pods_runs.PEER, None)]).rows
    assert list(row) == ["JaxTrainer", "1", "0", *["-"] * 9]


@pytest.mark.slow
def test_the_function_that_pods_are_measured_with_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    for _ in range(2):
        pods_function.train(str(tmp_path), 2.5, rank=0)
    marks = read_marks(tmp_path)
    loaded = [mark["step"] for mark in marks if mark["event"] == "loaded"]
    assert loaded[0] == 0 < loaded[1]
    assert 0 < median_step(marks, 0.0, time.time()) < 5
