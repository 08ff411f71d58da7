"""An Airflow DAG of one's own with a group of steps in it: ingest, two steps on the cluster, publish."""

import json
from dataclasses import dataclass
from typing import Any

import fsspec
from airflow.sdk import DAG, task

from tradewind import ExecutorStep, experiment_group, output_path_of, run_param, this_output_path, versioned


@dataclass(frozen=True)
class SelectConfig:
    cutoff: Any
    output_path: str


def select(config: SelectConfig) -> None:
    """Write the numbers below the cutoff."""
    with fsspec.open(f"{config.output_path}/numbers.json", "w") as file:
        json.dump(list(range(config.cutoff)), file)


@dataclass(frozen=True)
class FitConfig:
    numbers: str
    output_path: str


def fit(config: FitConfig) -> None:
    """Write the mean of the numbers."""
    with fsspec.open(f"{config.numbers}/numbers.json") as file:
        numbers = json.load(file)
    with fsspec.open(f"{config.output_path}/model.json", "w") as file:
        json.dump({"mean": sum(numbers) / len(numbers)}, file)


selected = ExecutorStep(
    name="publish/selected",
    fn=select,
    # What `ingest` returns, see `values` below. It is versioned: another cutoff makes other outputs.
    config=SelectConfig(cutoff=versioned(run_param("cutoff")), output_path=this_output_path()),
)
model = ExecutorStep(
    name="publish/model", fn=fit, config=FitConfig(numbers=output_path_of(selected), output_path=this_output_path())
)

with DAG("ingest_train_publish", catchup=False, tags=["tradewind", "example"], params={"rows": 100}):

    @task
    def ingest(params: dict[str, Any] | None = None) -> int:
        """Return how many rows there are."""
        return int((params or {})["rows"])

    @task
    def publish(path: str) -> None:
        """Print the model. It runs also if the model is reused."""
        with fsspec.open(f"{path}/model.json") as file:
            print(f"{path}: {json.load(file)}")

    train = experiment_group("train", steps=[model], values={"cutoff": ingest()})
    publish(train.output["publish/model"])
