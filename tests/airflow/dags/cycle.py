"""An Airflow DAG in which a step reads its own output."""

from dataclasses import dataclass
from typing import Any

from tradewind import ExecutorStep, InputName, experiment_dag


@dataclass(frozen=True)
class Config:
    source: Any


def copy(config: Config) -> None: ...


first = ExecutorStep("first", copy, Config(InputName.hardcoded("made/last")), override_output_path="made/first")
experiment_dag("cycle", [ExecutorStep("last", copy, Config(first), override_output_path="made/last")])
