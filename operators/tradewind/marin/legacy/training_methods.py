"""Computations and checks of training configs: schedules, checkpoints, optimizers, data, precision."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

Config = Any
_WITHOUT_END: Final = 2**63 - 1


class BatchSchedule:
    """Batch size of each training step, and the number of examples before it.

    Attributes:
        schedule: A batch size, or ``ScheduleStep``s with the first step of each size.
    """

    __module__ = "levanter.schedule"

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        if isinstance(schedule, int):
            self._parts = [(0, _WITHOUT_END, schedule, 0)]
            return
        if not schedule:
            raise ValueError("Batch schedule must have at least one step.")
        self._parts = []
        seen = 0
        for this, following in zip(schedule, [*schedule[1:], None], strict=True):
            until = following.start if following else _WITHOUT_END
            self._parts.append((this.start, until, this.value, seen))
            seen += (until - this.start) * this.value

    def _part_at(self, step: int) -> tuple[int, int, int, int]:
        return next((part for part in self._parts if part[0] <= step < part[1]), self._parts[-1])

    def batch_size_at_step(self, step: int) -> int:
        """Return the number of examples in the batch of ``step``."""
        return self._part_at(step)[2]

    def global_data_offset_by_step(self, step: int) -> int:
        """Return the number of examples before ``step``."""
        start, _, size, before = self._part_at(step)
        return before + (step - start) * size

    def find_step_containing_offset(self, offset: int) -> int:
        """Return the step whose batch contains this example.

        Raises:
            ValueError: No step contains it.
        """
        for start, until, size, before in self._parts:
            if before <= offset < before + (until - start) * size:
                return start + (offset - before) // size
        raise ValueError(f"Offset {offset} is beyond the last defined segment.")

    def batch_indices_at_step(self, bn: int) -> range:
        """Return the example indices of a step's batch."""
        first = self.global_data_offset_by_step(bn)
        return range(first, first + self.batch_size_at_step(bn))

    def unique_batch_sizes(self) -> set[int]:
        """Return all batch sizes of the schedule."""
        return {part[2] for part in self._parts}


def _is_schedule(given: Any) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    return is_list and not (given and not (hasattr(given[0], "start") and hasattr(given[0], "value")))


def value_at_step(schedule_or_t: Any, step: int) -> Any:
    """Return a scheduled value at one step: that of the last part that started by then."""
    if not _is_schedule(schedule_or_t):
        return schedule_or_t
    for part in schedule_or_t:
        if step >= part.start:
            return part.value
    raise ValueError(f"Step {step} isn't after any of the schedule steps.")


def distinct_values(schedule: Any) -> set[Any]:
    """Return all values of a schedule, or the one value."""
    return {part.value for part in schedule} if _is_schedule(schedule) else {schedule}


def validate_schedule_sorted(schedule: Any) -> None:
    """Refuse a schedule that is empty, does not start at step 0, or is unsorted."""
    if len(schedule) == 0:
        raise ValueError("Schedule must have at least one step.")
    if schedule[0].start != 0:
        raise ValueError("Schedule must start at step 0.")
    for at in range(1, len(schedule)):
        if schedule[at].start < schedule[at - 1].start:
            raise ValueError(f"Schedule is not sorted at index {at}")


def _check_checkpointer(config: Config) -> None:
    if isinstance(config.base_path, str):
        config.base_path = os.path.expanduser(config.base_path)
    for before, after in zip(config.keep, config.keep[1:], strict=False):
        if before["until"] is None:
            raise AssertionError("Only the last checkpoint interval can be None")
        if after["until"] is not None and after["until"] <= before["until"]:
            raise AssertionError("Checkpoint intervals must be monotonic")


def _expanded_path(config: Config, run_id: str) -> str:
    joined = os.path.join(config.base_path, run_id) if config.append_run_id_to_base_path else config.base_path
    return os.path.expanduser(joined)


def _take_old_tracker(config: Config) -> None:
    if config.wandb is not None:
        config.tracker = config.wandb


def _batch_axis(config: Config, step: int) -> Any:
    return config.__legacy__("haliax.axis.Axis")(config.batch_axis, value_at_step(config.train_batch_size, step))


def _train_batch(config: Config) -> Any:
    if not isinstance(config.train_batch_size, int):
        raise ValueError("TrainBatch is only valid for a single batch size. Use batch_axis_at_step instead")
    return _batch_axis(config, 0)


def _check_adam(config: Config) -> None:
    if config.update_rms_clipping is not None and config.update_rms_clipping <= 0:
        raise ValueError("update_rms_clipping must be a positive number or None.")
    if config.clip_update_norm is not None and config.update_rms_clipping is not None:
        raise ValueError("Cannot use both update_rms_clipping and clip_update_norm at the same time.")


def _check_power(config: Config) -> None:
    if config.a <= 0 or config.b >= 0:
        raise ValueError("Power schedule expects a > 0 and b < 0")


def _check_mixture(config: Config) -> None:
    if not config.configs:
        raise ValueError("At least one dataset must be provided")
    weights = config.train_weights
    if not isinstance(weights, dict | list):
        raise ValueError(f"Invalid train_weights type: {type(weights)}")
    for part in [weights] if isinstance(weights, dict) else [part for _, part in weights]:
        if not all(name in config.configs for name in part):
            raise ValueError(f"Weight keys {part.keys()} must be subset of config keys {config.configs.keys()}")
    has_limits = config.max_train_batches is not None or config.num_validation_sequences is not None
    if has_limits and not (config.experiment_budget is None and config.target_budget is None):
        raise AssertionError(
            "max_train_batches and num_validation_sequences and simulated data budget cannot all be set"
        )


def _check_samples(config: Config) -> None:
    if config.max_samples_per_benchmark is not None and config.max_samples_per_benchmark < 0:
        raise ValueError("max_samples_per_benchmark must be non-negative or None")


def _task_dict(config: Config) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(config).items() if value is not None}


def _check_engine(config: Config) -> None:
    for name, least in (
        ("max_seqs", config.max_seqs),
        ("max_tokens_per_round", config.imputed_max_tokens_per_round),
        ("max_seqs_in_prefill", config.max_seqs_in_prefill),
    ):
        if config.max_queued_tokens < least:
            raise ValueError(f"max_queued_tokens must be >= {name}")


def _tokens_per_round(config: Config) -> int:
    return int(config.max_seqs if config.max_tokens_per_round is None else config.max_tokens_per_round)


def _check_quantization(config: Config) -> None:
    if config.fp8 and config.int8:
        raise AssertionError("Cannot use FP8 and INT8 quantization at the same time.")


def _is_watching(config: Config) -> bool:
    return bool(config.watch_targets and config.interval > 0 and (config.include_norms or config.include_histograms))


def _choice(name: str) -> Any:
    return classmethod(lambda cls: name)


METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "levanter.checkpoint.CheckpointerConfig": {
        "__post_init__": _check_checkpointer, "expanded_path": _expanded_path,
    },
    "levanter.trainer.TrainerConfig": {
        "__post_init__": _take_old_tracker, "TrainBatch": property(_train_batch), "batch_axis_at_step": _batch_axis,
        "batch_schedule": property(lambda config: BatchSchedule(config.train_batch_size)),
    },
    "levanter.optim.config.AdamConfig": {"__post_init__": _check_adam},
    "levanter.optim.config.PowerLrSchedule": {"__post_init__": _check_power},
    "levanter.optim.config.OptimizerConfig": {"default_choice_name": _choice("adam")},
    "levanter.layers.normalization.LayerNormConfigBase": {"default_choice_name": _choice("rms")},
    "levanter.data.text.LmDatasetFormatBase": {"default_choice_name": _choice("text")},
    "levanter.tracker.tracker.TrackerConfig": {"default_choice_name": _choice("wandb")},
    "levanter.data.text.LMMixtureDatasetConfig": {
        "__post_init__": _check_mixture, "sources": property(lambda config: config.configs),
    },
    "levanter.eval_harness.SampleLoggingConfig": {"__post_init__": _check_samples},
    "levanter.eval_harness.TaskConfig": {"to_dict": _task_dict},
    "levanter.eval_harness.LmEvalHarnessConfig": {
        "max_gen_toks": property(lambda config: config.generation_kwargs.get("max_gen_toks", 256)),
        "to_task_spec": lambda config: [
            task.to_dict() if isinstance(task, config.__legacy__("levanter.eval_harness.TaskConfig")) else task
            for task in config.task_spec
        ],
    },
    "levanter.inference.engine.InferenceEngineConfig": {
        "__post_init__": _check_engine, "imputed_max_tokens_per_round": property(_tokens_per_round),
        "max_pages_per_seq": property(lambda config: -(-config.max_seq_len // config.page_size)),
    },
    "haliax.quantization.QuantizationConfig": {"__post_init__": _check_quantization},
    "levanter.callbacks.watch.WatchConfig": {"is_enabled": property(_is_watching)},
}  # fmt: skip

NAMES: Final[Mapping[str, Any]] = {
    "levanter.schedule.BatchSchedule": BatchSchedule,
    "levanter.schedule.value_at_step": value_at_step,
    "levanter.schedule.distinct_values": distinct_values,
    "levanter.schedule.validate_schedule_sorted": validate_schedule_sorted,
}
