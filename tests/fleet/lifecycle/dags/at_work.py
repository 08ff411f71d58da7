"""Tasks of Airflow DAGs whose jobs run until the gate of their machine opens."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import fsspec
from airflow.sdk import DAG

from tradewind import ExecutorStep, TpuSlice, experiment_dag, on_head_node, this_output_path
from tradewind.operators.ray_job import RayJobOperator

CLUSTER = "here"
STARTS, GATE = Path("/tmp/starts"), Path("/tmp/gate")
RATE, TARGET = 0.1, 3.0
STEP_S = 0.5

with DAG("jobs_at_work", params={"command": "true"}):
    for name, cpus in (("on_head", None), ("on_host", 0.1)):
        RayJobOperator(
            task_id=name,
            ray_conn_id=CLUSTER,
            entrypoint="{{ params.command | replace('NAME', task.task_id) }}",
            num_cpus=cpus,
        )


@dataclass(frozen=True)
class Config:
    output_path: str


def note(text: str) -> None:
    with STARTS.open("a") as file:
        file.write(f"{text}\n")


def work(config: Config) -> None:
    """Write a line, and the output once the gate is open."""
    note("step")
    while not GATE.exists():
        time.sleep(0.1)
    with fsspec.open(f"{config.output_path}/made", "w") as file:
        file.write("made")


def train(config: Config) -> dict[str, float]:
    """Step towards the target until the gate is open; process 0 saves each step as a checkpoint."""
    import jax

    rank = int(os.environ["TRADEWIND_PROCESS_ID"])
    slope = jax.jit(jax.grad(lambda weight: (weight - TARGET) ** 2))
    step, weight = newest(config.output_path)
    note(f"trains-{rank}")
    if rank == 0:
        note(f"from-{step}")
    while not GATE.exists():
        step, weight = step + 1, weight - RATE * float(slope(weight))
        if rank == 0:
            save(config.output_path, step, weight)
        time.sleep(STEP_S)
    return {"step": step, "weight": weight}


def save(output_path: str, step: int, weight: float) -> None:
    with fsspec.open(f"{output_path}/checkpoints/step-{step}/metadata.json", "w") as file:
        json.dump({"step": step, "weight": weight}, file)


def newest(output_path: str) -> tuple[int, float]:
    """Return the newest checkpoint's step and weight."""
    store = fsspec.filesystem("gs")
    found = [json.loads(store.cat_file(file)) for file in store.glob(f"{output_path}/checkpoints/*/metadata.json")]
    last = max(found, key=lambda one: one["step"], default={"step": 0, "weight": 0.0})
    return last["step"], last["weight"]


step = ExecutorStep("work/step", work, Config(this_output_path()), resources=on_head_node())
pod = ExecutorStep(
    "work/pod", train, Config(this_output_path()), resources=TpuSlice("v4-16"), resumable=["checkpoints/**"]
)
experiment_dag("steps_at_work", [step, pod], cluster=CLUSTER)
