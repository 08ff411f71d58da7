"""What the benchmarks share, and conditions for a valid measurement of the fleet, plans and pods."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.airflow.dags import EMPTY, EXPERIMENT, ONE_CALL, SELF_CHECK
from benchmarks.airflow.runs import Case, check
from benchmarks.fleet.rounds import KINDS, WAYS, ZONES, Round, measure
from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.harness import Goal, at_most, bench
from benchmarks.outputs import experiment_of, finished_files, write
from benchmarks.plans.costs import read_bare
from benchmarks.plans.runs import airflows
from benchmarks.pods.driver import OURS, PEER
from benchmarks.pods.function import train
from benchmarks.pods.measurements import Recovery, median_step, read_marks, recovery_of
from benchmarks.report import Table
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


def test_case_that_outlives_its_timeout_gets_its_own_airflow() -> None:
    first, *others = airflows(1_000, 500, 2)
    assert [case.kind for case in first] == [EXPERIMENT] * 4 + [EXPERIMENT, ONE_CALL] * 2
    assert [case.count for case in first] == [500] * 4 + [1_000] * 4
    assert [[(case.kind, case.count) for case in cases] for cases in others] == [[(SELF_CHECK, 500)]] * 2
    every = sum(others, first)
    assert len({case.dag_id for case in every}) == len(set(every)) == 6


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
