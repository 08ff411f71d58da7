"""Airflow DAG of a nightly evaluation and its gate, a leaderboard of it and of one that fails."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tradewind import ExecutorStep, Param, experiment_dag, on_airflow_worker, run_param, this_output_path, versioned
from tradewind.evaluation.comparisons import leaderboard, require


@dataclass(frozen=True)
class Measure:
    right: Any
    output_path: Any = this_output_path()


def measure(config: Measure) -> None:
    from tradewind.evaluation.results import (
        EvaluationRecord,
        Model,
        Sample,
        Serving,
        Status,
        TaskResult,
        write_results,
    )

    if config.right is None:
        raise ValueError("no such model")
    samples = tuple(Sample(f"{at}", "?", "", "", {"acc": float(at < config.right)}) for at in range(200))
    task = TaskResult("arc", "arc", "1", 0, {"acc": True}, {}, 200, samples)
    now = time.time()
    record = EvaluationRecord("made", Status.SUCCEEDED, Model("/m", "m"), Serving("api"), now, now)
    write_results(config.output_path, record, [task])


here = on_airflow_worker()
night = ExecutorStep("gated/night", measure, Measure(versioned(run_param("right"))), resources=here)
lost = ExecutorStep("gated/lost", measure, Measure(versioned(None)), resources=here)
experiment_dag(
    "gated",
    steps=[
        require(night, "arc", previous=True, name="gated/gate", resources=here),
        leaderboard("gated/board", {"night": night, "lost": lost}, resources=here),
    ],
    params={"right": Param(100, "Right answers.", type="integer")},
)
