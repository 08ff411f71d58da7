"""Step times of the same training by Tradewind and by Levanter's own main function, each in its own process.

The two alternate after some steps, so other load of the machine affects both.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import select
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from benchmarks.processes import in_fresh_process
from benchmarks.train import tokens

BATCH: Final = 8
LENGTH: Final = 128
STARTING: Final = 20
"""Uncounted steps: they compile, and fill the queue of batches."""
BLOCK: Final = 4
"""Steps of one side until the other continues."""
WAYS: Final = ("tradewind", "levanter")
PATIENCE_S: Final = 300.0
_UNLIKELY: Final = 0.025
"""Probability on each side of the interval."""
_ENV: Final = {
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TF_CPP_MIN_LOG_LEVEL": "3",  # else a page for each program that is taken from the cache
}


@dataclass(frozen=True)
class Training:
    """Speeds of both ways.

    Attributes:
        ours: Tokens per second of Tradewind, the median of the blocks.
        levanters: The same of Levanter's main function.
        quotients: Tradewind's seconds divided by Levanter's, for each pair of adjacent blocks.
    """

    ours: float
    levanters: float
    quotients: list[float]

    @property
    def spread(self) -> tuple[float, float]:
        """95 % confidence interval of the quotients' median, by the sign test."""
        ordered = sorted(self.quotients)
        count = len(ordered)
        chances = itertools.accumulate(math.comb(count, few) / 2**count for few in range(count))
        unlikely = sum(chance <= _UNLIKELY for chance in chances)
        cut = max(unlikely - 1, 0)  # few quotients prove nothing, and their range is the interval
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


class _Alternation:
    """Two processes of which one works; each waits at a named pipe for the other.

    Attributes:
        seconds: Durations of this process's blocks except the last, during which the other process ends.
    """

    def __init__(self, folder: str, mine: str, others: str) -> None:
        self._mine, self._others = (os.open(f"{folder}/{name}", os.O_RDWR) for name in (mine, others))
        self._began = 0.0
        self.seconds: list[float] = []

    def wait(self) -> None:
        """Wait until the other process stops working."""
        if not select.select([self._mine], [], [], PATIENCE_S)[0]:
            raise TimeoutError(f"The other training did nothing for {PATIENCE_S:g} s.")
        os.read(self._mine, 1)
        self._began = time.perf_counter()

    def count(self) -> None:
        """Record the block that ends."""
        self.seconds.append(time.perf_counter() - self._began)

    def give(self) -> None:
        """Let the other process continue."""
        os.write(self._others, b".")


def measure(way: str, first: str, folder: str, steps: int) -> list[float]:
    """Train alternately with the other way; return the seconds of each block after the uncounted steps."""
    from levanter.main import train_lm
    from levanter.trainer import Trainer

    from tradewind.recipes.lm.levanter_parts import quiet_libraries
    from tradewind.recipes.lm.run import LevanterTrainConfig, run_levanter_train_lm

    quiet_libraries()
    done = 0
    alternation = _Alternation(folder, way, next(other for other in WAYS if other != way))
    train_step = Trainer.train_step

    def alternating(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        if done >= STARTING and (done - STARTING) % BLOCK == 0:
            if done > STARTING:
                alternation.count()
            if done > STARTING or way != first:
                alternation.give()
            alternation.wait()
        info = train_step(*args, **kwargs)
        done += 1
        if done == steps:
            alternation.give()
        return info

    Trainer.train_step = alternating
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        config = _config(folder, out, steps)
        if way == "tradewind":
            run_levanter_train_lm(LevanterTrainConfig(config, out))
        else:
            train_lm.main(config)
    if done != steps:
        raise RuntimeError(f"{way} made {done} steps of {steps}.")
    return alternation.seconds


def prepare(folder: str) -> None:
    """Make a tokenizer, and a token cache of real text."""
    from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize

    tokens.prepare(folder, 2, 1_000_000)
    with contextlib.redirect_stdout(io.StringIO()):
        files = sorted(f"{folder}/texts/{name}" for name in os.listdir(f"{folder}/texts"))
        tokenize(TokenizeFilesConfig(files[:1], files[1:], f"{folder}/tokens", f"{folder}/tokenizer"))


def compare(blocks: int, pairs: int) -> Training:
    """Measure ``blocks`` blocks of each of ``pairs`` pairs of trainings; the two alternate in starting."""
    steps = STARTING + (blocks + 1) * BLOCK
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        env = {**os.environ, **_ENV, "HOME": home, "JAX_COMPILATION_CACHE_DIR": f"{home}/compilations"}
        in_fresh_process(prepare, folder, env=env)
        for way in WAYS:
            os.mkfifo(f"{folder}/{way}")
        for number in range(pairs):
            first = WAYS[number % 2]
            with ThreadPoolExecutor() as both:
                started = {
                    way: both.submit(in_fresh_process, measure, way, first, folder, steps, env=env) for way in WAYS
                }
                for way, ended in started.items():
                    found[way] += ended.result()
    ours, theirs = (BLOCK * BATCH * LENGTH / statistics.median(found[way]) for way in WAYS)
    return Training(ours, theirs, [a / b for a, b in zip(found["tradewind"], found["levanter"], strict=True)])
