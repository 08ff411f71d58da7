"""Levanter's tracker for Tradewind: it writes the metrics file and prints progress with the goodput."""

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

FIRST_START_VARIABLE = "TRADEWIND_FIRST_START"
RESTARTS_VARIABLE = "TRADEWIND_RESTARTS"
QUIET_S = 60.0
"""Age below which the goodput of a training without restarts is not printed: it mostly measures the start."""


class Goodput:
    """Goodput of this process's training, by ``cloud_tpu.goodput``; ``rows`` are metrics of earlier attempts."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], started: float, restarts: int = 0) -> None:
        self.restarts = restarts
        self._started = started
        self._steps = CountedSteps(rows)
        self._has_steps = False

    @staticmethod
    def of_this_pod(rows: Iterable[Mapping[str, Any]]) -> Goodput:
        """Create one from the variables that the pod runner sets."""
        known = list(rows)
        started = first_start(known, float(os.environ.get(FIRST_START_VARIABLE) or time.time()))
        return Goodput(known, started, int(os.environ.get(RESTARTS_VARIABLE) or 0))

    def add(self, step: int, seconds: float | None) -> None:
        """Count a step; ``seconds`` is None for the first of an attempt."""
        self._has_steps = True
        self._steps.add(step, seconds)

    def share(self, now: float) -> float | None:
        """Return the goodput between 0 and 1; None while it is not meaningful."""
        wall = now - self._started
        if not self._has_steps or (wall < QUIET_S and not self.restarts):
            return None
        return goodput(self._steps.seconds, wall)


class StepTimer:
    """Measures a step, from the end of the one before with its checkpoint and validation."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """Start: the step before is complete."""
        self._since = now

    def end(self, now: float) -> float | None:
        """Return the seconds of the step that ends now; None if its begin was not seen."""
        began, self._since = self._since, None
        return None if began is None else now - began


AVERAGED_LOSS = "eval/ema/loss"
"""Levanter's name for the validation loss of averaged weights, for any kind of average."""
KEPT_METRICS = ("train/loss", "eval/loss", AVERAGED_LOSS)
HARNESS = "lm_eval/"
"""Prefix of the evaluation harness's metrics, such as ``lm_eval/hellaswag/acc``."""
WANDB_S = 10.0
"""Timeout for W&B's upload before the process exits; it has none of its own."""
_LAST_OF_A_STEP = "throughput/loading_time"
"""Metric that Levanter reports last for a step."""
_FLOPS_PER_EXAMPLE = "throughput/flops_per_example"
_PEAK_FLOPS = "throughput/theoretical_flops"
"""Peak of all devices together; Levanter knows it by device kind, except for CPUs."""


@dataclass(frozen=True)
class TrackingOptions:
    """Path of the metrics, and input of progress lines."""

    metrics_path: str
    total_steps: int
    tokens_per_step: int
    steps_per_line: int
    examples_per_step: int = 1
    batch_sizes: tuple[tuple[int, int], ...] = ()
    """First step → examples per step from there, if that changes; the two numbers above are of the first."""
    each_set: bool = False
    """Whether to keep loss and bits per byte of each validation set, beside the loss of all."""
    also_kept: tuple[str, ...] = ()
    """Patterns of other metrics to keep, such as ``train/dpo_*``."""

    def examples(self, before: int, done: int) -> int:
        """Return the number of examples of the steps from ``before`` to ``done``."""
        if not self.batch_sizes:
            return (done - before) * self.examples_per_step
        return sum(
            next(size for first, size in reversed(self.batch_sizes) if first <= step) for step in range(before, done)
        )

    def is_kept(self, key: str) -> bool:
        """Whether the metrics file keeps Levanter's metric of that name."""
        if key in KEPT_METRICS or key.startswith(HARNESS) or any(fnmatchcase(key, each) for each in self.also_kept):
            return True
        return self.each_set and key.startswith("eval/") and key.endswith(("/loss", "/bpb"))


def tracker_config(options: TrackingOptions) -> Any:
    """Return a Levanter ``TrackerConfig`` whose tracker writes and prints in process 0 only."""
    return _tracker_config_class()(options=options)


@cache
def _tracker_config_class() -> Any:
    """Create the class on first use, since its base class and its registration need Levanter."""
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
    """Write the metrics that process 0 has buffered to the store."""
    from levanter.tracker import get_tracker

    with suppress(KeyError):  # in another process
        get_tracker("tradewind").finish()


def flush_trackers() -> None:
    """Flush all trackers of process 0 before it exits."""
    from levanter.tracker import get_tracker

    flush_metrics()
    with suppress(KeyError):  # not configured, or in another process
        get_tracker("tensorboard").finish()
    with suppress(KeyError):
        finishing = Thread(target=get_tracker("wandb").finish, daemon=True)
        finishing.start()
        finishing.join(WANDB_S)


class TrainingLog:
    """Methods of the tracker: keeps the losses (nats/token) and drops Levanter's other metrics."""

    def __init__(self, options: TrackingOptions) -> None:
        before = read_metrics(options.metrics_path) if exists(options.metrics_path) else []
        self._options = options
        self._file = MetricsFile(options.metrics_path)
        self._progress = ProgressReporter(options, Goodput.of_this_pod(before))
        self._timer = StepTimer()

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        """Write the losses among ``metrics``; print a line about some training steps and about every validation.

        Each training step counts once: at the end Levanter reports the last one again.
        """
        if step is None:  # the evaluation harness reports after its step, without one
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
        """Record one step (counted from 0; printed from 1)."""
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
        """Return tokens/s; empty for the first line, since the first step is mostly compilation."""
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
    """Whether a metric is the score of one harness task, and not its error."""
    is_one = key.startswith(HARNESS) and not key.startswith(f"{HARNESS}averages/")
    return is_one and not key.endswith(("_stderr", "/sample_len"))
