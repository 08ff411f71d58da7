"""Make Levanter's config of a training from an ``LmTrainConfig``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tradewind.datasets.files import basename, is_remote, join
from tradewind.recipes.checkpoints.resume import InitialCheckpointFile, newest_checkpoint
from tradewind.recipes.checkpoints.saving import checkpointer_config
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.field_types import check_values
from tradewind.recipes.lm.overrides import with_overrides
from tradewind.recipes.metrics.trackers import tensorboard_config, wandb_config
from tradewind.recipes.metrics.tracking import TrackingOptions, tracker_config
from tradewind.recipes.train_config import (
    LmTrainConfig,
    checkpoint_roots,
    checkpoints_path,
    metrics_path,
    temporary_checkpoints_path,
)

if TYPE_CHECKING:
    from levanter.main.train_lm import TrainLmConfig
    from levanter.trainer import TrainerConfig


def levanter_config(config: LmTrainConfig, tokenizer: str) -> TrainLmConfig:
    """Return the config of Levanter's ``train_lm``; ``tokenizer`` is a local folder.

    Raises:
        ValueError: An input is missing, Levanter does not know or cannot read a field of ``levanter``, or ``model`` is
            no model or has too short a context.
    """
    from levanter.main.train_lm import TrainLmConfig
    from levanter.optim.config import AdamConfig

    made = TrainLmConfig(
        data=levanter_parts.cached_data(config.cache_path, tokenizer),
        model=levanter_parts.language_model(config.model, config.model_size, config.seq_len, tokenizer),
        train_seq_len=config.seq_len,
        trainer=_trainer(config),
        optimizer=AdamConfig(
            learning_rate=config.learning_rate, weight_decay=config.weight_decay, warmup=0.1, min_lr_ratio=0.1
        ),
        initialize_from_checkpoint_path=source_checkpoint(config),
        hf_save_path=None,  # Levanter would write hf/step-N; train_lm writes hf/
    )
    changed: TrainLmConfig = with_overrides(made, config.levanter)
    check_values(changed, "Levanter's ")
    levanter_parts.export_dtype(changed.hf_save_dtype)
    return changed


def with_trackers(made: TrainLmConfig, config: LmTrainConfig, first_step: int) -> TrainLmConfig:
    """Add the trackers; ``first_step`` is the next one."""
    import dataclasses

    import jax

    trackers = [tracker_config(_tracking(config))]
    if config.tensorboard and jax.process_index() == 0:
        trackers.append(tensorboard_config(config.output_path, first_step))
    if config.wandb is not None:
        trackers.append(wandb_config(config.wandb, config.output_path))  # on all hosts, which exchange the run's id
    return dataclasses.replace(made, trainer=dataclasses.replace(made.trainer, tracker=tuple(trackers)))


def source_checkpoint(config: LmTrainConfig) -> str | None:
    """Return the initial checkpoint, if the config has one; a training with its own checkpoint does not read it.

    Raises:
        ValueError: The training needs it, and it does not exist.
    """
    if config.initialize_from is None:
        return None
    has_own = newest_checkpoint(checkpoint_roots(config)) is not None
    begin = InitialCheckpointFile.of_begin(checkpoints_path(config.output_path))
    return begin.resolve(config.initialize_from, "initialize_from", is_read=not has_own, has_own=has_own)


def _trainer(config: LmTrainConfig) -> TrainerConfig:
    from levanter.callbacks.watch import WatchConfig
    from levanter.distributed import DistributedConfig
    from levanter.trainer import TrainerConfig

    return TrainerConfig(
        id=basename(config.output_path),
        seed=config.seed,
        mp=levanter_parts.precision(),
        mesh=levanter_parts.mesh(),
        distributed=DistributedConfig(initialize_jax_distributed=False),
        require_accelerator=levanter_parts.on_tpu(),
        train_batch_size=config.batch_size,
        num_train_steps=config.num_train_steps,
        steps_per_eval=config.steps_per_eval,
        max_eval_batches=config.max_eval_batches,
        checkpointer=_checkpointer(config),
        tracker=(),
        log_dir=log_folder(config.output_path),
        log_jaxprs=False,
        log_xla_hlo=False,
        # By default, Levanter measures norms every tenth step with a second compiled step. A restarted training would
        # compile it again: the cache key depends on which of the two was traced first.
        watch=WatchConfig(watch_targets=[]),
    )


def _checkpointer(config: LmTrainConfig) -> Any:
    return checkpointer_config(
        checkpoints_path(config.output_path),
        temporary_checkpoints_path(config),
        config.checkpoint_seconds,
        config.steps_per_checkpoint,
    )


def _tracking(config: LmTrainConfig) -> TrackingOptions:
    return TrackingOptions(
        metrics_path=metrics_path(config.output_path),
        total_steps=config.num_train_steps,
        tokens_per_step=config.batch_size * config.seq_len,
        steps_per_line=config.steps_per_line,
        examples_per_step=config.batch_size,
    )


def log_folder(output_path: str) -> Path:
    """Return the local folder of Levanter's detailed log file, which all processes share."""
    if is_remote(output_path):
        return Path(tempfile.gettempdir()) / "tradewind-logs" / basename(output_path)
    return Path(join(output_path, "logs"))
