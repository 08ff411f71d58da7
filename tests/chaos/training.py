"""Trainings for drills: a tiny model on two hosts, with data made once for all runs.

The first comes from the recipe. The second fine-tunes its model with a Levanter config.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import tradewind.cli
from tests.chaos.follower import FollowedStep
from tests.chaos.pace import train_slowly, tune_slowly
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.model_spec import MODEL_SIZES
from tradewind.recipes.train_config import RESUMABLE, LmTrainConfig
from tradewind.rehearsal.drill.environment import HEARTBEAT_S, DrillEnvironment
from tradewind.steps import ExecutorStep, TpuSlice, lazy, resolve, this_output_path, versioned

DAGS = Path(tradewind.cli.__file__).parent / "drill_dags"
MAKE_DATA = "import sys; from drill_training import DataConfig, make_data; make_data(DataConfig(256, sys.argv[1]))"
STEPS = 40


def make_data(environment: DrillEnvironment) -> str:
    """Make the data in a separate process; return its path."""
    path = f"{environment.prefix}/data"
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
            model_size="tiny",
            num_train_steps=versioned(STEPS),
            learning_rate=0.01,
            batch_size=16,  # a multiple of the device count of two slices as well
            seq_len=16,
            steps_per_eval=1000,
            max_eval_batches=1,
            checkpoint_seconds=2.0,
            output_path=this_output_path(),
        ),
    )


def fine_tuning(data: str, base: str) -> ExecutorStep:
    """Return a fine-tuning of the model that the training made under the prefix ``base``."""
    trained = resolve([training(data)], base).steps[0].output_path
    return ExecutorStep(
        name="chaos/tune",
        fn=tune_slowly,
        resources=TpuSlice("v4-16"),
        resumable=RESUMABLE,
        config=LevanterTrainConfig(
            lazy(
                "levanter.main.train_lm:TrainLmConfig",
                data=lazy(
                    "levanter.data.text:LmDataConfig",
                    tokenizer=f"{data}/tokenizer",
                    cache_dir=f"{data}/tokens",
                    components={"corpus": lazy("levanter.data.text:DatasetComponent")},
                    auto_build_caches=False,
                    mixture_block_size=64,
                ),
                model=lazy(
                    "levanter.models.llama:LlamaConfig",
                    max_seq_len=16,
                    gradient_checkpointing=False,
                    **dataclasses.asdict(MODEL_SIZES["tiny"]),
                ),
                trainer=lazy(
                    "levanter.trainer:TrainerConfig",
                    train_batch_size=16,
                    num_train_steps=STEPS,
                    steps_per_eval=1000,
                    max_eval_batches=1,
                    checkpointer=lazy(
                        "levanter.checkpoint:CheckpointerConfig", save_interval=lazy("datetime:timedelta", seconds=2)
                    ),
                    watch=lazy("levanter.callbacks.watch:WatchConfig", watch_targets=[]),
                ),
                optimizer=lazy("levanter.optim.config:AdamConfig", learning_rate=1e-3),
                initialize_from_checkpoint_path=trained,
            ),
            output_path=this_output_path(),
        ),
    )


def start_step(environment: DrillEnvironment, step: ExecutorStep, prefix: str) -> FollowedStep:
    """Start the step under ``prefix``."""
    cluster = RayCluster("chaos", environment.ray.address, environment.ray.token)
    return FollowedStep(resolve([step], prefix).of(step), cluster, HEARTBEAT_S)
