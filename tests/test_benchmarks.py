"""The benchmarks run and print the rows that they promise; how long anything takes is not looked at."""

from __future__ import annotations

import pytest

from benchmarks import run
from benchmarks.graphs import SHAPES, edge_count, last_steps, steps_of
from benchmarks.report import Table, ratio, seconds


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
