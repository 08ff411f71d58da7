"""The training that chaos disturbs: a tiny model on two hosts, with its data made once for all runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tradewind.cli
from tests.chaos.follower import FollowedStep
from tests.chaos.pace import train_slowly
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.recipes.train_config import RESUMABLE, LmTrainConfig
from tradewind.rehearsal.drill.house import HEARTBEAT_S, DrillHouse
from tradewind.steps import ExecutorStep, TpuSlice, resolve, this_output_path, versioned

DAGS = Path(tradewind.cli.__file__).parent / "rehearse" / "drill_dags"
MAKE_DATA = "import sys; from drill_training import DataConfig, make_data; make_data(DataConfig(256, sys.argv[1]))"
STEPS = 40


def make_data(house: DrillHouse) -> str:
    """Where the data is, made in a process of its own."""
    path = f"{house.prefix}/data"
    env = os.environ | {"PYTHONPATH": str(DAGS), "TRADEWIND_STEP": "data", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", MAKE_DATA, path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return path


def training(data: str, num_slices: int | tuple[int, ...] = 1) -> ExecutorStep:
    return ExecutorStep(
        name="chaos/train",
        fn=train_slowly,
        resources=TpuSlice("v4-16", num_slices),
        resumable=RESUMABLE,
        config=LmTrainConfig(
            cache_path=f"{data}/tokens",
            tokenizer_path=f"{data}/tokenizer",
            num_train_steps=versioned(STEPS),
            batch_size=16,  # a multiple of the devices of two slices, too
            seq_len=16,
            steps_per_eval=1000,
            max_eval_batches=1,
            checkpoint_seconds=2.0,
            output_path=this_output_path(),
        ),
    )


def begin(house: DrillHouse, data: str, prefix: str, num_slices: int | tuple[int, ...] = 1) -> FollowedStep:
    """Begin to make the training's output below ``prefix``."""
    step = training(data, num_slices)
    cluster = RayCluster("chaos", house.ray.address, house.ray.token)
    return FollowedStep(resolve([step], prefix).of(step), cluster, HEARTBEAT_S)
