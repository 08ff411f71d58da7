"""What a training will do and what it has done, in numbers and in the lines of the task's log."""

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
"""A step costs a forward pass, and twice as much for the backward pass."""

TYPICAL_UTILIZATION: Final = 0.4
"""Of what devices can do at most: what a training that is well laid out makes of it."""


@dataclass(frozen=True)
class TrainingSummary:
    """The size of a training.

    Attributes:
        parameters: Of the whole model.
        sequences: Over all steps.
        length: Tokens of each.
        flops_per_token: Forward and backward; None for a model that does not say.
        devices: Of all hosts.
        device_kind: As JAX calls them.
        device_flops: Operations a second that one of them can do at most; None where nobody knows.
        together: Sequences in each example of a step: 2 where they come in pairs.
        first_step: More than 0 where it goes on with another training, whose sequences do not count.
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
        """Of the whole training."""
        return None if self.flops_per_token is None else self.flops_per_token * self.tokens

    @property
    def hours(self) -> float | None:
        """How long the devices take for the steps alone, where it is known what they can do."""
        if self.flops is None or not self.device_flops:
            return None
        return self.flops / (self.devices * self.device_flops * TYPICAL_UTILIZATION) / 3600

    def numbers(self) -> dict[str, Any]:
        """For a comparison or a scaling law."""
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
    """Of the config that Levanter will run, on the devices that there are.

    Args:
        made: The config.
        together: Sequences in each example of a step.
        passes: What a sequence costs, in forward passes.
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


def resumed_summary(facts: TrainingSummary, made: Any, first_step: int) -> TrainingSummary:
    """The facts of a training whose first step is this one."""
    offset = made.trainer.batch_schedule.global_data_offset_by_step(facts.steps - first_step)
    return dataclasses.replace(facts, first_step=first_step, sequences=facts.together * offset)


def start_lines(facts: TrainingSummary, made: Any) -> list[str]:
    """What will be trained."""
    return training_lines(facts, made, mixture(made.data))


def training_lines(facts: TrainingSummary, made: Any, data: Sequence[str]) -> list[str]:
    """What will be trained, with these lines about its data."""
    cost = "unknown" if facts.flops is None else f"{facts.flops_per_token:.3g} a token, {facts.flops:.3g} in all"
    begin = made.initialize_from_hf or made.initialize_from_checkpoint_path or made.trainer.initialize_from
    devices = "one device" if facts.devices == 1 else f"{facts.devices:,} devices"
    several = f"{facts.sequences // facts.together:,} pairs of sequences"
    examples = several if facts.together == 2 else f"{facts.sequences:,} sequences"
    lines = [
        f"trains {facts.run_id}: {facts.model} with {facts.parameters:,} parameters, on {devices}",
        f"  {facts.steps - facts.first_step:,} steps, {examples} of {facts.length:,} tokens: {facts.tokens:,} tokens",
        f"  FLOPs: {cost}",
        *(f"  {line}" for line in data),
    ]
    if begin:
        how = f"goes on at step {facts.first_step + 1:,}/{facts.steps:,} with" if facts.first_step else "begins with"
        lines.append(f"  {how} {made.model.reference_checkpoint if begin is True else begin}")
    if facts.hours is not None:
        lines.append(f"  {facts.hours:,.1f} hours, if the devices do {TYPICAL_UTILIZATION:.0%} of what they can")
    return lines


def mixture(data: Any) -> list[str]:
    """What is trained on, with the share of each component, and from which step on."""
    weights = data.train_weights or dict.fromkeys(data.components, 1)
    stages = [(0, weights)] if isinstance(weights, Mapping) else weights
    lines = []
    for start, stage in stages:
        total = sum(stage.values())
        shares = ", ".join(f"{name} {weight / total:.1%}" for name, weight in stage.items() if weight > 0)
        lines.append(f"mixture{f' from step {start}' if start else ''}: {shares}")
    return lines


def losses(last: Mapping[str, Any]) -> dict[str, Any]:
    """The losses in what was measured at the last step, in nats per token; of averaged weights, if there are any."""
    prefix = "eval/ema/" if AVERAGED_LOSS in last else "eval/"
    sets = {
        key.removeprefix(prefix).removesuffix("/loss"): value
        for key, value in last.items()
        if key.startswith(prefix) and key.endswith("/loss") and key != f"{prefix}loss"
    }
    each = {name: value for name, value in sets.items() if not name.startswith("ema/") and name != "ema"}
    return {"train_loss": last.get("train/loss"), "eval_loss": last.get(f"{prefix}loss"), "eval_losses": each}


def end_lines(result: Mapping[str, Any]) -> list[str]:
    """What came out."""
    return result_end_lines(result, ())


def result_end_lines(result: Mapping[str, Any], measured: Sequence[str]) -> list[str]:
    """What came out, with these lines about what was measured besides the losses."""
    each = ", ".join(f"{name} {value:.3f}" for name, value in result["eval_losses"].items())
    evaluated = _said(result["eval_loss"]) + (f" ({each})" if each else "")
    return [
        f"trained {result['run_id']}: {_steps_done(result)}, loss {_said(result['train_loss'])}, "
        f"validation loss {evaluated}",
        *(f"  {line}" for line in measured),
        f"  checkpoint {result['checkpoint']}",
        f"  export {result['export'] or 'none'}",
    ]


def _steps_done(result: Mapping[str, Any]) -> str:
    """Its own, as its first lines say it; in the result of one that goes on with another, they are those of both."""
    first, last = result.get("first_step", 0), result["steps"]
    return f"{last:,} steps" if not first else f"{last - first:,} steps up to step {last:,}"


def _said(loss: float | None) -> str:
    return "not measured" if loss is None else f"{loss:.3f}"
