"""Shared parts of the benchmarks: selection of parts, goals and graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.graphs import SHAPES, last_steps, steps_of
from benchmarks.harness import Goal, at_most, bench
from benchmarks.report import Table


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
