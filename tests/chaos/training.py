"""Trainings for drills: a tiny model on two hosts, and a follower that runs its step on a cluster without Airflow.

The first comes from the recipe. The second fine-tunes its model with a Levanter config.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import tradewind.cli
from tests.chaos.pace import train_slowly, tune_slowly
from tradewind.attempts.decisions import (
    Claim,
    Finished,
    InheritFailure,
    NextAction,
    RerunRequest,
    TaskIdentity,
    decide_start,
    next_action,
)
from tradewind.attempts.renewal import renewing_while_claimed
from tradewind.attempts.step_lease import StepLease
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.follow.outcomes import FollowRequest, await_outcome
from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.model_spec import MODEL_SIZES
from tradewind.recipes.train_config import RESUMABLE, LmTrainConfig
from tradewind.records.attempts import Attempt, AttemptOutcome
from tradewind.records.lifecycle import complete_commit
from tradewind.rehearsal.drill.environment import HEARTBEAT_S, DrillEnvironment
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import ExecutorStep, ResolvedStep, TpuSlice, lazy, resolve, this_output_path, versioned
from tradewind.storage.errors import StoreUnavailableError
from tradewind.tasks.attempt_runner import to_job_result
from tradewind.tasks.jobs.following import retry_for
from tradewind.tasks.step_job import demand_of, step_request
from tradewind.triggers.lease import wait_for_release

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


REPOSITORY = Path(__file__).parents[2]
BY = {"dag": "chaos", "run": "r", "task": "train", "map_index": -1, "try": 1, "max_tries": 0}
CONNECT_S = 120.0
PAUSE_S = 0.5


class FollowedStep:
    """A step that a separate thread runs; ``state`` returns the Airflow state of its run."""

    def __init__(self, step: ResolvedStep, cluster: RayCluster, heartbeat_s: float) -> None:
        self._lease = StepLease(step, BY, heartbeat_s)
        self._cluster = cluster
        self._state = "running"
        threading.Thread(target=self._run, daemon=True, name="follower").start()

    def state(self) -> str:
        return self._state

    def _run(self) -> None:
        try:
            self._state = "success" if self._run_attempts() else "failed"
        except BaseException:
            self._state = "failed"
            raise

    def _run_attempts(self) -> bool:
        while True:
            try:
                match decide_start(self._lease.read(), TaskIdentity(dict(BY)), RerunRequest()):
                    case Finished():
                        return True
                    case InheritFailure():
                        return False
                    case Claim():
                        end = self._attempt()
                        if end is not None:
                            return end
                    case _:
                        self._wait_for_end()
            except StoreUnavailableError:
                time.sleep(PAUSE_S)

    def _attempt(self) -> bool | None:
        """Run one attempt; return whether it made the output, or None if another attempt is due."""
        seen = self._lease.read()
        claimed = self._lease.claim(seen.lease, self._spec, cluster="chaos")
        if claimed is None:
            return None
        with renewing_while_claimed(self._lease.path, claimed.attempt.job):
            action = self._follow(claimed.attempt)
        if action is NextAction.NEXT_ATTEMPT:
            self._lease.end_unstarted(claimed.attempt.job, AttemptOutcome.LOST)
        elif action is NextAction.WAIT_UNTIL_STALE:
            self._wait_for_end()
        return {NextAction.SUCCEED: True, NextAction.FAILED: False, NextAction.CONTRADICTION: False}.get(action)

    def _follow(self, attempt: Attempt) -> NextAction:
        request = step_request(attempt, StepSpec.from_json(attempt.spec), REPOSITORY)
        retry_for(lambda: RayJobs(self._cluster).submit_or_attach(request), CONNECT_S, print)
        follow = FollowRequest(attempt.job, demand_of(attempt.job, self._lease.step.step))
        ending = asyncio.run(await_outcome(self._cluster, follow, None, print)).ending
        print(f"chaos: attempt {attempt.number}: {ending.sentence}", *ending.last_lines, sep="\n", flush=True)
        record = self._lease.store.read()
        lease = record.lease if record else None
        action = next_action(lease, attempt.job, to_job_result(ending))
        if action is NextAction.SUCCEED and lease is not None:
            complete_commit(self._lease.path, lease)
        return action

    def _wait_for_end(self) -> None:
        seen = self._lease.read()
        asyncio.run(wait_for_release(self._lease.path, seen.lease.attempt if seen.lease else 0, print))

    def _spec(self) -> StepSpec:
        return step_spec(self._lease.step, CodeFolder(REPOSITORY))
