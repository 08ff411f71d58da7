"""Ray driver that trains on a slice by Tradewind's runner or the peer, for at most an hour.

``python -m benchmarks.pods.driver RUNNER FOLDER``
"""

from __future__ import annotations

import os
import sys
from typing import Any

OURS, PEER = "ours", "JaxTrainer"
SLICE_TYPE, TOPOLOGY, ACCELERATOR = "v4-16", "2x2x2", "TPU-V4"
LONGEST_S = 3600.0


def run_ours(folder: str) -> None:
    from tradewind.runtime.pods.capacity.slices import HostGroup
    from tradewind.runtime.pods.runner import run_pod
    from tradewind.runtime.pods.timeline import TIMELINE_FILE, Timeline
    from tradewind.steps import TpuSlice

    timeline = Timeline(f"{folder}/{TIMELINE_FILE}")
    command = [sys.executable, "-m", "benchmarks.pods.function", folder, str(LONGEST_S)]
    env = {"PYTHONPATH": os.getcwd()}
    run_pod(command, HostGroup.of(TpuSlice(SLICE_TYPE)), env=env, log_dir=folder, timeline=timeline)
    timeline.flush()


def run_peer(folder: str) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    env = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
    ray.init(address="auto", runtime_env={"env_vars": env})
    JaxTrainer(
        train_loop,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(
            use_tpu=True, num_workers=2, topology=TOPOLOGY, accelerator_type=ACCELERATOR,
            resources_per_worker={"TPU": 4}
        ),
        run_config=RunConfig(name="pods", storage_path=folder, failure_config=FailureConfig(max_failures=10)),
    ).fit()  # fmt: skip


def train_loop(config: dict[str, Any]) -> None:
    import ray.train

    from benchmarks.pods.function import train

    train(config["folder"], LONGEST_S, ray.train.get_context().get_world_rank())


if __name__ == "__main__":
    {OURS: run_ours, PEER: run_peer}[sys.argv[1]](sys.argv[2])
