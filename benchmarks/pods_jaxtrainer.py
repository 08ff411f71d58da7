"""The same with Ray Train: ``python -m benchmarks.pods_jaxtrainer FOLDER SECONDS TOPOLOGY ACCELERATOR``."""

from __future__ import annotations

import os
import sys
from typing import Any


def train_loop(config: dict[str, Any]) -> None:
    import ray.train

    from benchmarks.pods_function import train

    train(config["folder"], config["seconds"], ray.train.get_context().get_world_rank())


def main(folder: str, seconds: str, topology: str, accelerator: str) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    env = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
    ray.init(address="auto", runtime_env={"env_vars": env})
    JaxTrainer(
        train_loop,
        train_loop_config={"folder": folder, "seconds": float(seconds)},
        scaling_config=ScalingConfig(
            use_tpu=True, num_workers=2, topology=topology, accelerator_type=accelerator,
            resources_per_worker={"TPU": 4}
        ),
        run_config=RunConfig(name="pods", storage_path=folder, failure_config=FailureConfig(max_failures=10)),
    ).fit()  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
