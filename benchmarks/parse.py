"""Parsing a DAG file: building and serialising an experiment's DAG beside plain tasks with the same edges."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Table, kilobytes, ratio, seconds

ROOT = Path(__file__).parents[1]
SHAPES = ("chain", "lattice")
KINDS = ("plain", "plain+root", "experiment")
PEER = "plain"

Figures = dict[str, float]


def bench_parse(quick: bool = False) -> list[Table]:
    """Parse each DAG several times in fresh processes, in turn, and compare the medians."""
    shapes, count, repeats = (SHAPES[:1], 50, 1) if quick else (SHAPES, 500, 5)
    table = Table(
        f"parse: a DAG file with {count} steps beside {count} plain tasks (median of {repeats})",
        ("DAG", "edges", "build", "serialise", "both", "÷ plain", "size", "÷ plain"),
        notes=(
            "CPU time of a fresh process, imports not counted. plain: BaseOperators with the same edges between them.",
            "plain+root: those below one more task that all of them wait for, as all steps wait for plan.",
        ),
    )
    with tempfile.TemporaryDirectory() as home:
        measured = _measure(shapes, count, repeats, Path(home))
    for shape in shapes:
        peer = measured[shape, PEER]
        for kind in KINDS:
            _add_row(table, f"{shape} {kind}", measured[shape, kind], peer)
    return [table, _import_table(measured)]


def _measure(shapes: Sequence[str], count: int, repeats: int, home: Path) -> dict[tuple[str, str], Figures]:
    samples: dict[tuple[str, str], list[Figures]] = {(shape, kind): [] for shape in shapes for kind in KINDS}
    for _ in range(repeats):
        for (shape, kind), found in samples.items():
            found.append(_parse_once(kind, shape, count, home))
    return {
        key: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for key, found in samples.items()
    }


def _parse_once(kind: str, shape: str, count: int, home: Path) -> Figures:
    """Parse in a process that knows no Airflow but an empty one."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.parse_once", kind, shape, str(count)],
        cwd=ROOT,
        env=environ | {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: Figures = json.loads(result.stdout.splitlines()[-1])
    return figures


def _add_row(table: Table, name: str, found: Figures, peer: Figures) -> None:
    table.add(
        name,
        str(int(found["edges"])),
        seconds(found["build"]),
        seconds(found["serialise"]),
        seconds(_parse_time(found)),
        ratio(_parse_time(found), _parse_time(peer)),
        kilobytes(int(found["bytes"])),
        ratio(found["bytes"], peer["bytes"]),
    )


def _parse_time(found: Figures) -> float:
    return found["build"] + found["serialise"]


def _import_table(measured: dict[tuple[str, str], Figures]) -> Table:
    """What a DAG file imports: Airflow alone, and what an experiment adds to it."""
    ours, peer = measured[SHAPES[0], "experiment"], measured[SHAPES[0], PEER]
    table = Table(
        "parse: imports of the same process", ("import", "time", "÷ Airflow"), notes=("CPU time of a fresh process.",)
    )
    table.add("airflow.sdk, serialisation", seconds(ours["import_airflow"]), ratio(1, 1))
    table.add("+ tradewind", seconds(peer["import"]), ratio(peer["import"], peer["import_airflow"]))
    table.add("+ tradewind's operators", seconds(ours["import"]), ratio(ours["import"], ours["import_airflow"]))
    return table
