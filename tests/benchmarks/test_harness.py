"""Shared parts of the benchmarks: selection of parts, goals, medians, ratios, and graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.harness import Goal, at_most, bench, median
from benchmarks.report import Table, ratio
from benchmarks.train.steps import Training


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


def test_medians_ignore_unknown_and_ratios_have_two_decimals() -> None:
    assert [ratio(1, 3), ratio(25, 1), ratio(1, 0)] == ["0.33", "25", "inf"]
    assert (median([3.0, None, 1.0, 2.0]), median([None])) == (2.0, None)
    training = Training(1.0, 1.0, [float(number) for number in range(15)])
    assert training.spread == (
        3.0,
        11.0,
    )  # the fourth from both ends: Conover, Practical Nonparametrics
