"""The same training by us and by Levanter's own main function, each in a new process: tokens a second, step by step."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from benchmarks.processes import in_fresh_process
from benchmarks.train import tokens

BATCH: Final = 8
LENGTH: Final = 128
STARTING: Final = 20
"""Steps that are not counted: they compile, and fill the queue of batches."""
_UNLIKELY: Final = 0.025
"""On each side."""
_ENV: Final = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}


@dataclass(frozen=True)
class Training:
    """What both ways made of it.

    Attributes:
        ours: Tokens a second, the median of the pairs.
        levanters: The same of Levanter's.
        quotients: Of each pair: our seconds by Levanter's.
    """

    ours: float
    levanters: float
    quotients: list[float]

    @property
    def spread(self) -> tuple[float, float]:
        """In which the median of the quotients lies with 95 %, by the order of the pairs (the sign test)."""
        ordered = sorted(self.quotients)
        count = len(ordered)
        chances = itertools.accumulate(math.comb(count, few) / 2**count for few in range(count))
        unlikely = sum(chance <= _UNLIKELY for chance in chances)
        cut = max(unlikely - 1, 0)  # few pairs say nothing, and all of them are the interval
        return ordered[cut], ordered[count - 1 - cut]


def _config(folder: str, out: str, steps: int) -> Any:
    from levanter.callbacks.watch import WatchConfig
    from levanter.checkpoint import CheckpointerConfig
    from levanter.data.text import DatasetComponent, LmDataConfig
    from levanter.distributed import DistributedConfig
    from levanter.main.train_lm import TrainLmConfig
    from levanter.models.llama import LlamaConfig
    from levanter.optim.config import AdamConfig
    from levanter.tracker import NoopConfig
    from levanter.trainer import TrainerConfig

    return TrainLmConfig(
        data=LmDataConfig(
            tokenizer=f"{folder}/tokenizer",
            components={"texts": DatasetComponent(cache_dir=f"{folder}/tokens")},
            auto_build_caches=False,
        ),
        model=LlamaConfig(
            max_seq_len=LENGTH, hidden_dim=128, intermediate_dim=384, num_layers=4, num_heads=4, num_kv_heads=4,
            gradient_checkpointing=False, tokenizer=f"{folder}/tokenizer", reference_checkpoint=f"{folder}/tokenizer",
        ),
        trainer=TrainerConfig(
            id="run",
            num_train_steps=steps,
            train_batch_size=BATCH,
            steps_per_eval=10**6,
            max_eval_batches=1,
            checkpointer=CheckpointerConfig(base_path=f"{out}/checkpoints", save_interval=timedelta(hours=1), keep=[]),
            distributed=DistributedConfig(initialize_jax_distributed=False),
            tracker=NoopConfig(),
            watch=WatchConfig(watch_targets=[]),
            log_dir=f"{out}/logs",
            log_jaxprs=False,
            log_xla_hlo=False,
            require_accelerator=False,
        ),
        optimizer=AdamConfig(learning_rate=1e-3),
        hf_save_steps=None,
    )  # fmt: skip


def measure(way: str, folder: str, steps: int) -> float:
    """Train; seconds from the end of the steps that are not counted to that of the last one."""
    from levanter.main import train_lm
    from levanter.trainer import Trainer

    from tradewind.recipes.levanter.quiet import quiet_libraries
    from tradewind.recipes.lm.run import LevanterTrainConfig, run_levanter_train_lm

    quiet_libraries()
    ends: list[float] = []
    train_step = Trainer.train_step

    def timed(*args: Any, **kwargs: Any) -> Any:
        info = train_step(*args, **kwargs)
        ends.append(time.perf_counter())
        return info

    Trainer.train_step = timed
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        config = _config(folder, out, steps)
        if way == "tradewind":
            run_levanter_train_lm(LevanterTrainConfig(config, out))
        else:
            train_lm.main(config)
    if len(ends) != steps:
        raise RuntimeError(f"{way} made {len(ends)} steps of {steps}.")
    return ends[-1] - ends[STARTING - 1]


def prepare(folder: str) -> None:
    """A tokenizer, and a token cache of real text."""
    from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize

    tokens.prepare(folder, 2, 1_000_000)
    with contextlib.redirect_stdout(io.StringIO()):
        files = sorted(f"{folder}/texts/{name}" for name in os.listdir(f"{folder}/texts"))
        tokenize(TokenizeFilesConfig(files[:1], files[1:], f"{folder}/tokens", f"{folder}/tokenizer"))


def compare(steps: int, pairs: int) -> Training:
    """So many pairs, each in the other order than the one before."""
    ways = ("tradewind", "levanter")
    found: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        env = {**os.environ, **_ENV, "HOME": home, "JAX_COMPILATION_CACHE_DIR": f"{home}/compilations"}
        in_fresh_process(prepare, folder, env=env)
        for number in range(pairs):
            for way in ways[:: -1 if number % 2 else 1]:
                found[way].append(in_fresh_process(measure, way, folder, steps, env=env))
    counted = (steps - STARTING) * BATCH * LENGTH
    ours, theirs = (counted / statistics.median(found[way]) for way in ways)
    return Training(ours, theirs, [a / b for a, b in zip(found["tradewind"], found["levanter"], strict=True)])
