"""An Airflow DAG whose two steps write to the same output path."""

from dataclasses import dataclass

from tradewind import ExecutorStep, experiment_dag, versioned


@dataclass(frozen=True)
class Config:
    value: int


def make(config: Config) -> None: ...


steps = [ExecutorStep(f"s{n}", make, Config(versioned(n)), override_output_path="made/here") for n in (1, 2)]
experiment_dag("one_path", steps)
