"""Timed processes of ``scripts.metrics --timed``: each prints the seconds of CPU time that it took.

CPU time depends little on other work on the machine.
"""

from __future__ import annotations

import gc
import importlib
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Config:
    """Config of each step of the DAG."""

    index: int
    output_path: str
    inputs: list[Any] = field(default_factory=list)


def do_nothing(config: Config) -> None:
    """Function of every step."""


def time_import(package: str) -> None:
    started = time.process_time()
    importlib.import_module(package)
    print(time.process_time() - started)


def time_parsing(count: int) -> None:
    """Build and serialise an experiment whose steps each read the previous one; imports are not counted."""
    from airflow.serialization.serialized_objects import DagSerialization

    from tradewind import experiment_dag

    _dag(experiment_dag, 1)
    # Exclude objects of the imports from garbage collection, whose time would fall into a random phase.
    gc.collect()
    gc.freeze()
    started = time.process_time()
    json.dumps(DagSerialization.to_dict(_dag(experiment_dag, count)))
    print(time.process_time() - started)


def _dag(experiment_dag: Any, count: int) -> Any:
    from tradewind import ExecutorStep, output_path_of, this_output_path, versioned

    step = None
    for index in range(count):
        inputs = [output_path_of(step, "data")] if step is not None else []
        config = Config(versioned(index), this_output_path(), inputs)
        step = ExecutorStep(f"metrics/step_{index:05}", do_nothing, config)
    return experiment_dag(f"metrics_{count}", [step], prefix=None)
