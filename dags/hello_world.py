"""Smallest experiment as an Airflow DAG: one step makes data, another reads it."""

import json
from dataclasses import dataclass

import fsspec

from tradewind import ExecutorStep, experiment_dag, output_path_of, this_output_path, versioned


@dataclass(frozen=True)
class DataConfig:
    n: int
    output_path: str


def make_data(config: DataConfig) -> None:
    """Write the numbers below n."""
    with fsspec.open(f"{config.output_path}/data.json", "w") as file:
        json.dump(list(range(config.n)), file)


@dataclass(frozen=True)
class StatsConfig:
    input_path: str
    output_path: str


def make_stats(config: StatsConfig) -> None:
    """Write the number of numbers and their sum."""
    with fsspec.open(f"{config.input_path}/data.json") as file:
        numbers = json.load(file)
    stats = {"count": len(numbers), "sum": sum(numbers)}
    print(stats)
    with fsspec.open(f"{config.output_path}/stats.json", "w") as file:
        json.dump(stats, file)


data = ExecutorStep(
    name="hello_world/data",
    fn=make_data,
    # Only versioned values decide whether a step runs again: change n, and both steps do.
    config=DataConfig(n=versioned(100), output_path=this_output_path()),
)

stats = ExecutorStep(
    name="hello_world/stats",
    fn=make_stats,
    # A reference to another step's output makes this step wait for it, and includes its version in this one's.
    config=StatsConfig(input_path=output_path_of(data), output_path=this_output_path()),
)

experiment_dag("hello_world", steps=[stats])
