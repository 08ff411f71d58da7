"""How Levanter reports a training run to us: one tracker that writes the metrics file and prints progress."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from threading import Thread
from typing import Any

from tradewind.cloud_tpu.goodput import STEP_SECONDS, CountedSteps, first_start, goodput
from tradewind.datasets.files import exists
from tradewind.recipes.lm.levanter_parts import quiet_console
from tradewind.recipes.metrics.file import MetricsFile, read_metrics

# The goodput, as ``cloud_tpu.goodput`` has it, of the training that runs in this process: for its progress lines.

FIRST_START_VARIABLE = "TRADEWIND_FIRST_START"
RESTARTS_VARIABLE = "TRADEWIND_RESTARTS"
QUIET_S = 60.0
"""A training younger than this, and not restarted, is mostly its own start: its goodput says nothing."""


class Goodput:
    """The sum so far. ``rows`` are the metrics of the attempts before."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], started: float, restarts: int = 0) -> None:
        self.restarts = restarts
        self._started = started
        self._steps = CountedSteps(rows)
        self._goes_on = False

    @staticmethod
    def of_this_pod(rows: Iterable[Mapping[str, Any]]) -> Goodput:
        """With what the pod runner tells its processes."""
        known = list(rows)
        started = first_start(known, float(os.environ.get(FIRST_START_VARIABLE) or time.time()))
        return Goodput(known, started, int(os.environ.get(RESTARTS_VARIABLE) or 0))

    def add(self, step: int, seconds: float | None) -> None:
        """Count a step; ``seconds`` is None for the first of an attempt."""
        self._goes_on = True
        self._steps.add(step, seconds)

    def share(self, now: float) -> float | None:
        """Between 0 and 1; None as long as it says nothing."""
        wall = now - self._started
        if not self._goes_on or (wall < QUIET_S and not self.restarts):
            return None
        return goodput(self._steps.seconds, wall)


class StepTimer:
    """Seconds of a step: since all was done that belongs to the one before, checkpoint and validation included."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """All that belongs to the step before is done."""
        self._since = now

    def end(self, now: float) -> float | None:
        """The seconds of the step that ends now; None if nobody saw it begin."""
        began, self._since = self._since, None
        return None if began is None else now - began


AVERAGED_LOSS = "eval/ema/loss"
"""Levanter's name for the validation loss of the averaged weights, of whatever kind the average is."""
KEPT_METRICS = ("train/loss", "eval/loss", AVERAGED_LOSS)
HARNESS = "lm_eval/"
"""What tasks of the evaluation harness measure: ``lm_eval/hellaswag/acc``."""
WANDB_S = 10.0
"""How long W&B may take to send what it has, when the process is about to end; it has no time limit of its own."""
_LAST_OF_A_STEP = "throughput/loading_time"
"""What Levanter reports when all that belongs to a step is done."""
_FLOPS_PER_EXAMPLE = "throughput/flops_per_example"
_PEAK_FLOPS = "throughput/theoretical_flops"
"""Of all devices together; Levanter knows them by the kind of the device, but not those of a CPU."""


@dataclass(frozen=True)
class TrackingOptions:
    """Where the metrics go, and what progress lines need to know."""

    metrics_path: str
    total_steps: int
    tokens_per_step: int
    steps_per_line: int
    examples_per_step: int = 1
    batch_sizes: tuple[tuple[int, int], ...] = ()
    """First step -> examples of each step from there on, where that changes; the two numbers above are of the first."""
    each_set: bool = False
    """Whether the loss of each validation set is kept, beside that of all together, and the bits per byte."""
    also_kept: tuple[str, ...] = ()
    """What is kept besides, as patterns such as ``train/dpo_*``."""

    def examples(self, before: int, done: int) -> int:
        """How many examples the steps from ``before`` up to ``done`` take."""
        if not self.batch_sizes:
            return (done - before) * self.examples_per_step
        return sum(
            next(size for first, size in reversed(self.batch_sizes) if first <= step) for step in range(before, done)
        )

    def is_kept(self, key: str) -> bool:
        """Whether what Levanter measures under that name is written down."""
        if key in KEPT_METRICS or any(fnmatchcase(key, pattern) for pattern in self.also_kept):
            return True
        if key.startswith(HARNESS):
            return True
        return self.each_set and key.startswith("eval/") and key.endswith(("/loss", "/bpb"))


def tracker_config(options: TrackingOptions) -> Any:
    """A Levanter ``TrackerConfig`` whose tracker writes and prints in process 0, and is silent in the others."""
    return _tracker_config_class()(options=options)


@cache
def _tracker_config_class() -> Any:
    """Made on first use, since its base class and its registration need Levanter."""
    import jax
    from levanter.tracker.tracker import NoopTracker, Tracker, TrackerConfig

    class TradewindTracker(TrainingLog, Tracker):
        name = "tradewind"

    @TrackerConfig.register_subclass("tradewind")
    @dataclass
    class TradewindTrackerConfig(TrackerConfig):
        options: TrackingOptions

        def init(self, run_id: str | None) -> Tracker:
            quiet_console()
            return TradewindTracker(self.options) if jax.process_index() == 0 else NoopTracker()

    return TradewindTrackerConfig


def flush_metrics() -> None:
    """Bring the rows of the metrics that process 0 has so far to the store."""
    from levanter.tracker import get_tracker

    with suppress(KeyError):  # in another process
        get_tracker("tradewind").finish()


def flush_trackers() -> None:
    """Bring all that process 0 measured to the store, when the process is about to end."""
    from levanter.tracker import get_tracker

    flush_metrics()
    with suppress(KeyError):  # not configured, or in another process
        get_tracker("tensorboard").finish()
    with suppress(KeyError):
        finishing = Thread(target=get_tracker("wandb").finish, daemon=True)
        finishing.start()
        finishing.join(WANDB_S)


class TrainingLog:
    """The methods of a tracker: keeps the losses (nats/token), drops the rest of what Levanter measures."""

    def __init__(self, options: TrackingOptions) -> None:
        before = read_metrics(options.metrics_path) if exists(options.metrics_path) else []
        self._options = options
        self._file = MetricsFile(options.metrics_path)
        self._progress = ProgressReporter(options, Goodput.of_this_pod(before))
        self._timer = StepTimer()

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        """Write the losses among ``metrics``; print a line about some training steps and about every validation.

        A training step is taken note of once: at the end Levanter reports the last one again.
        """
        if step is None:  # as the evaluation harness reports, after the step that it belongs to
            step = self._progress.last_step if any(key.startswith(HARNESS) for key in metrics) else None
        if _LAST_OF_A_STEP in metrics:
            self._timer.begin(time.monotonic())
        values = {key: float(value) for key, value in metrics.items() if self._options.is_kept(key)}
        repeated = "train/loss" in values and step is not None and step <= self._progress.last_step
        if step is None or not values or repeated:
            return
        seconds = self._timer.end(time.monotonic()) if "train/loss" in values else None
        if seconds is not None:
            values[STEP_SECONDS] = round(seconds, 6)
        self._file.append(int(step), values)
        self._progress.report(int(step), values)

    def log_hyperparameters(self, hparams: dict[str, Any]) -> None:
        """Nothing: the step's config is in its record."""

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Take what MFU needs; the rest of the summary is the step's result."""
        if _FLOPS_PER_EXAMPLE in metrics:
            self._progress.flops_per_example = float(metrics[_FLOPS_PER_EXAMPLE])
        if _PEAK_FLOPS in metrics:
            self._progress.peak_flops = float(metrics[_PEAK_FLOPS])

    def log_artifact(self, artifact_path: Any, *, name: str | None = None, type: str | None = None) -> None:
        """Nothing: checkpoints and exports are files of the output."""

    def finish(self) -> None:
        """Bring the last lines to the store."""
        self._file.flush()


class ProgressReporter:
    """Prints ``step 20/60  loss 5.312  tokens/s 12345  MFU 41.2%  restarts 1  goodput 87.3%``.

    The loss is that of the step; tokens/s and MFU (the share of the devices' peak speed) are since the line before.
    """

    def __init__(self, options: TrackingOptions, goodput: Goodput) -> None:
        self.options = options
        self.last_step = -1
        self.flops_per_example: float | None = None
        self.peak_flops: float | None = None
        self._goodput = goodput
        self._since: tuple[int, float] | None = None

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Take note of one step (counted from 0; people count from 1)."""
        place = f"step {step + 1}/{self.options.total_steps}"
        if "eval/loss" in values:
            print(f"{place}  validation loss {values['eval/loss']:.3f}", flush=True)
        if AVERAGED_LOSS in values:
            print(f"{place}  validation loss {values[AVERAGED_LOSS]:.3f} of the averaged weights", flush=True)
        for key in () if "eval/loss" in values or AVERAGED_LOSS in values else values:
            if key.startswith("eval/") and key.endswith("/loss"):  # of a set that Levanter measures by itself
                name = key.removeprefix("eval/").removesuffix("/loss")
                print(f"{place}  validation loss {values[key]:.3f} ({name})", flush=True)
        scores = [f"{key.removeprefix(HARNESS)} {value:.3f}" for key, value in values.items() if _is_score(key)]
        if scores:
            print(f"{place}  {', '.join(scores)}", flush=True)
        if "train/loss" not in values:
            return
        self.last_step = step
        self._goodput.add(step, values.get(STEP_SECONDS))
        done, now = step + 1, time.monotonic()
        if done % self.options.steps_per_line == 0 or done == self.options.total_steps:
            print(f"{place}  loss {values['train/loss']:.3f}{self._speed(done, now)}{self._history()}", flush=True)
            self._since = (done, now)
        self._since = self._since or (done, now)

    def _speed(self, done: int, now: float) -> str:
        """Empty for a line without one before it: the first step is mostly compilation."""
        if self._since is None or done <= self._since[0]:
            return ""
        before, since = self._since
        examples_per_second = self.options.examples(before, done) / (now - since)
        tokens_per_example = self.options.tokens_per_step / self.options.examples_per_step
        return f"  tokens/s {examples_per_second * tokens_per_example:.0f}{self._mfu(examples_per_second)}"

    def _mfu(self, examples_per_second: float) -> str:
        if not self.flops_per_example or not self.peak_flops:
            return ""
        used = examples_per_second * self.flops_per_example
        return f"  MFU {used / self.peak_flops:.1%}"

    def _history(self) -> str:
        restarts = f"  restarts {self._goodput.restarts}" if self._goodput.restarts else ""
        share = self._goodput.share(time.time())
        return restarts + ("" if share is None else f"  goodput {share:.1%}")


def _is_score(key: str) -> bool:
    """Of one task of the harness, and not of how sure it is."""
    is_one = key.startswith(HARNESS) and not key.startswith(f"{HARNESS}averages/")
    return is_one and not key.endswith(("_stderr", "/sample_len"))
