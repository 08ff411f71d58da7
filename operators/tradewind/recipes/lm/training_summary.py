"""Size and result of a training, in numbers and as lines of the task log."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.stored_models import model_shapes
from tradewind.recipes.metrics.tracking import AVERAGED_LOSS

_BACKWARD: Final = 3
"""Cost of a step in forward passes: one, and two for the backward pass."""

TYPICAL_UTILIZATION: Final = 0.4
"""Share of the devices' peak that a well-configured training reaches."""


@dataclass(frozen=True)
class TrainingSummary:
    """The size of a training.

    Attributes:
        parameters: Parameters of the whole model.
        sequences: Sequences of all steps.
        length: Tokens of a sequence.
        flops_per_token: Forward and backward; None if the model does not define it.
        devices: Devices of all hosts.
        device_kind: JAX's name of them.
        device_flops: Peak operations per second of one device; None if unknown.
        together: Sequences in each example of a step: 2 for pairs.
        first_step: Above 0 if it continues another training, whose sequences do not count.
    """

    run_id: str
    model: str
    parameters: int
    steps: int
    sequences: int
    length: int
    flops_per_token: float | None
    devices: int
    device_kind: str
    device_flops: float | None
    together: int = 1
    first_step: int = 0

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def flops(self) -> float | None:
        """Return the operations of the whole training."""
        return None if self.flops_per_token is None else self.flops_per_token * self.tokens

    @property
    def hours(self) -> float | None:
        """Estimate the hours of all steps, if the peak of the devices is known."""
        if self.flops is None or not self.device_flops:
            return None
        return self.flops / (self.devices * self.device_flops * TYPICAL_UTILIZATION) / 3600

    def numbers(self) -> dict[str, Any]:
        """Return the numbers for a comparison or a scaling law."""
        return {
            "run_id": self.run_id,
            "first_step": self.first_step,
            "steps": self.steps,
            "parameters": self.parameters,
            "tokens": self.tokens,
            "flops": self.flops,
            "devices": self.devices,
            "device_kind": self.device_kind,
            "device_flops": self.device_flops,
        }


def training_summary(made: Any, together: int = 1, passes: int = _BACKWARD) -> TrainingSummary:
    """Summarize the config that Levanter will run, on the devices of this process.

    Args:
        made: The config.
        together: Sequences in each example of a step.
        passes: Cost of a sequence in forward passes.
    """
    length, vocab_size = made.train_seq_len or made.model.max_seq_len, len(made.data.the_tokenizer)
    steps = made.trainer.num_train_steps
    flops = made.model.flops_per_token(vocab_size, length)
    return TrainingSummary(
        run_id=made.trainer.id,
        model=type(made.model).__name__,
        parameters=sum(math.prod(shape) for shape in model_shapes(made, vocab_size).values()),
        steps=steps,
        sequences=together * made.trainer.batch_schedule.global_data_offset_by_step(steps),
        together=together,
        length=length,
        flops_per_token=None if flops is None else passes * float(flops),
        devices=levanter_parts.device_count(),
        device_kind=levanter_parts.device_kind(),
        device_flops=levanter_parts.device_peak(),
    )


def resumed_summary(summary: TrainingSummary, made: Any, first_step: int) -> TrainingSummary:
    """Return the summary of a training with this first step."""
    offset = made.trainer.batch_schedule.global_data_offset_by_step(summary.steps - first_step)
    return dataclasses.replace(summary, first_step=first_step, sequences=summary.together * offset)


def start_lines(summary: TrainingSummary, made: Any) -> list[str]:
    """Return the log lines at the start."""
    return training_lines(summary, made, mixture(made.data))


def training_lines(summary: TrainingSummary, made: Any, data: Sequence[str]) -> list[str]:
    """Return the log lines at the start, with these lines about the data."""
    cost = "unknown" if summary.flops is None else f"{summary.flops_per_token:.3g} a token, {summary.flops:.3g} in all"
    begin = made.initialize_from_hf or made.initialize_from_checkpoint_path or made.trainer.initialize_from
    devices = "one device" if summary.devices == 1 else f"{summary.devices:,} devices"
    several = f"{summary.sequences // summary.together:,} pairs of sequences"
    examples = several if summary.together == 2 else f"{summary.sequences:,} sequences"
    steps = summary.steps - summary.first_step
    lines = [
        f"trains {summary.run_id}: {summary.model} with {summary.parameters:,} parameters, on {devices}",
        f"  {steps:,} steps, {examples} of {summary.length:,} tokens: {summary.tokens:,} tokens",
        f"  FLOPs: {cost}",
        *(f"  {line}" for line in data),
    ]
    if begin:
        how = (
            f"continues at step {summary.first_step + 1:,}/{summary.steps:,} with"
            if summary.first_step
            else "begins with"
        )
        lines.append(f"  {how} {made.model.reference_checkpoint if begin is True else begin}")
    if summary.hours is not None:
        lines.append(f"  {summary.hours:,.1f} hours, if the devices do {TYPICAL_UTILIZATION:.0%} of what they can")
    return lines


def mixture(data: Any) -> list[str]:
    """Return lines with the share of each component, for each stage."""
    weights = data.train_weights or dict.fromkeys(data.components, 1)
    stages = [(0, weights)] if isinstance(weights, Mapping) else weights
    lines = []
    for start, stage in stages:
        total = sum(stage.values())
        shares = ", ".join(f"{name} {weight / total:.1%}" for name, weight in stage.items() if weight > 0)
        lines.append(f"mixture{f' from step {start}' if start else ''}: {shares}")
    return lines


def losses(last: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last step's losses in nats per token; of averaged weights, if there are any."""
    prefix = "eval/ema/" if AVERAGED_LOSS in last else "eval/"
    sets = {
        key.removeprefix(prefix).removesuffix("/loss"): value
        for key, value in last.items()
        if key.startswith(prefix) and key.endswith("/loss") and key != f"{prefix}loss"
    }
    each = {name: value for name, value in sets.items() if not name.startswith("ema/") and name != "ema"}
    return {"train_loss": last.get("train/loss"), "eval_loss": last.get(f"{prefix}loss"), "eval_losses": each}


def end_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the log lines of the result."""
    return result_end_lines(result, ())


def result_end_lines(result: Mapping[str, Any], measured: Sequence[str]) -> list[str]:
    """Return the log lines of the result, with these lines about other metrics."""
    each = ", ".join(f"{name} {value:.3f}" for name, value in result["eval_losses"].items())
    evaluated = _format_loss(result["eval_loss"]) + (f" ({each})" if each else "")
    return [
        f"trained {result['run_id']}: {_steps_done(result)}, loss {_format_loss(result['train_loss'])}, "
        f"validation loss {evaluated}",
        *(f"  {line}" for line in measured),
        f"  checkpoint {result['checkpoint']}",
        f"  export {result['export'] or 'none'}",
    ]


def _steps_done(result: Mapping[str, Any]) -> str:
    """Describe the training's own steps: the result also counts those of a training that it continues."""
    first, last = result.get("first_step", 0), result["steps"]
    return f"{last:,} steps" if not first else f"{last - first:,} steps up to step {last:,}"


def _format_loss(loss: float | None) -> str:
    return "not measured" if loss is None else f"{loss:.3f}"
