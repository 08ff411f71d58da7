"""Cost of parsing a DAG file: build and serialize an experiment's DAG, compared with plain tasks of the same edges."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Iterator

from benchmarks.harness import median
from benchmarks.processes import in_fresh_process
from benchmarks.report import Table, kilobytes, ratio, seconds

SHAPES = ("chain", "lattice")
KINDS = ("plain", "plain+root", "experiment")
PEER = "plain"

Figures = dict[str, float]


def bench_parse(quick: bool) -> Iterator[Table]:
    """Parse each DAG several times in new processes, alternately, and compare the medians."""
    shapes, count, repeats = (SHAPES[:1], 50, 1) if quick else (SHAPES, 500, 5)
    samples: dict[tuple[str, str], list[Figures]] = {(shape, kind): [] for shape in shapes for kind in KINDS}
    with tempfile.TemporaryDirectory() as home:
        env = {"AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        for _ in range(repeats):
            for (shape, kind), of_key in samples.items():
                of_key.append(in_fresh_process(parse_once, kind, shape, count, env=env))
    measured = {
        key: {name: median(sample[name] for sample in of_key) or 0.0 for name in of_key[0]}
        for key, of_key in samples.items()
    }
    title = f"parse: a DAG file with {count} steps beside {count} plain tasks (median of {repeats})"
    yield _parse_table(measured, title)
    yield _import_table(measured[SHAPES[0], "experiment"], measured[SHAPES[0], PEER])


def parse_once(kind: str, shape: str, count: int) -> Figures:
    """Import, build and serialise one DAG in this process, and return CPU times.

    The objects of the imports are frozen first: a garbage collection of Airflow's modules takes as long as hundreds of
    tasks, and would fall into a random phase.
    """
    started = time.process_time()
    from airflow.sdk import DAG  # noqa: F401
    from airflow.serialization.serialized_objects import DagSerialization

    airflow_imported = time.process_time()
    from benchmarks.airflow.dags import make_dag

    if kind == "experiment":
        import tradewind.operators.experiment  # noqa: F401
    imported = time.process_time()
    gc.collect()
    gc.freeze()
    ready = time.process_time()
    dag = make_dag(kind, shape, count)
    built = time.process_time()
    text = json.dumps(DagSerialization.to_dict(dag))
    serialised = time.process_time()
    return {
        "import_airflow": airflow_imported - started,
        "import": imported - airflow_imported,
        "build": built - ready,
        "serialise": serialised - built,
        "both": serialised - ready,
        "bytes": len(text.encode()),
        "edges": sum(len(task.downstream_task_ids) for task in dag.tasks),
    }


def _parse_table(measured: dict[tuple[str, str], Figures], title: str) -> Table:
    table = Table(
        title,
        ("DAG", "edges", "build", "serialise", "both", "÷ plain", "size", "÷ plain"),
        notes=(
            "CPU time of a fresh process, imports not counted. plain: BaseOperators with the same edges between them.",
            "plain+root: those below one more task that all of them wait for, as all steps wait for plan.",
        ),
    )
    for (shape, kind), found in measured.items():
        peer = measured[shape, PEER]
        table.add(
            f"{shape} {kind}",
            str(int(found["edges"])),
            *(seconds(found[name]) for name in ("build", "serialise", "both")),
            ratio(found["both"], peer["both"]),
            kilobytes(int(found["bytes"])),
            ratio(found["bytes"], peer["bytes"]),
        )
    return table


def _import_table(ours: Figures, peer: Figures) -> Table:
    """Return the costs of imports: Airflow alone, and the additional ones of an experiment."""
    table = Table(
        "parse: imports of the same process", ("import", "time", "÷ Airflow"), notes=("CPU time of a fresh process.",)
    )
    table.add("airflow.sdk, serialisation", seconds(ours["import_airflow"]), ratio(1, 1))
    table.add("+ tradewind", seconds(peer["import"]), ratio(peer["import"], peer["import_airflow"]))
    table.add("+ tradewind's operators", seconds(ours["import"]), ratio(ours["import"], ours["import_airflow"]))
    return table
