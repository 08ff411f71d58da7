"""Train a language model with Levanter, on every host of a slice or in one process.

``train_lm`` is called once in each host's process, with ``jax.distributed`` initialised by the caller when there are
several. Every process runs the same function; process 0 writes. A call that finds a checkpoint under its output goes
on from the newest complete one, and a call that finds a finished training only reads its result: after a kill, call it
again.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tradewind.datasets.files import basename, exists, is_remote, join, read_json, write_json
from tradewind.recipes import levanter_parts as parts
from tradewind.recipes.metrics import read_metrics
from tradewind.recipes.model_sizes import model_size
from tradewind.recipes.quiet import quiet_libraries
from tradewind.recipes.stored_models import load_checkpointed, model_axes, write_export
from tradewind.recipes.tokenizers import local_tokenizer
from tradewind.recipes.tracking import TrackingOptions, tracker_config

if TYPE_CHECKING:
    from levanter.main.train_lm import TrainLmConfig
    from levanter.trainer import TrainerConfig

RESUMABLE = ("checkpoints/**", "metrics.jsonl")
"""For ``ExecutorStep(resumable=...)``: what an attempt after a preemption goes on from."""
LAST_CHECKPOINT_SECONDS = 900.0
"""How long the last checkpoint may take to reach the store after the last step."""


@dataclass(frozen=True)
class LmTrainConfig:
    """What ``train_lm`` trains, on what, and for how long."""

    cache_path: str
    """Output of ``build_token_cache``."""
    tokenizer_path: str
    """Output of ``train_bpe_tokenizer``; goes into the export too."""
    output_path: str
    """Gets ``checkpoints/``, ``hf/``, ``metrics.jsonl`` and, last of all, ``result.json``."""
    model_size: str = "tiny"
    """A name in ``tradewind.recipes.model_sizes.MODEL_SIZES``."""
    num_train_steps: int = 60
    learning_rate: float = 1e-2
    """The highest one: a tenth of the steps warm up to it, the rest follows a cosine down to a tenth of it."""
    batch_size: int = 8
    """Sequences per step, over all hosts; a multiple of the number of devices."""
    seq_len: int = 128
    """Tokens per sequence, and the model's context length."""
    weight_decay: float = 0.1
    seed: int = 0
    """Of the initial weights and of the order of the data."""
    steps_per_eval: int = 20
    """Steps between two validations; there is one at the end too."""
    max_eval_batches: int | None = 32
    """Validation batches in each of these; ``None`` means all."""
    steps_per_checkpoint: int | None = None
    """Steps between checkpoints that are kept for good; ``None`` keeps only the last one of the run."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints that serve to resume: what a preemption can cost."""
    steps_per_line: int = 10
    """Steps between two progress lines."""


def train_lm(config: LmTrainConfig) -> dict[str, Any]:
    """Train, export, and return the result: steps, parameters, tokens, ``train_loss`` and ``eval_loss`` in nats/token.

    The losses are those of the last step, ``None`` if an attempt was killed between its checkpoint and measuring them.

    Raises ``ValueError`` for a setting out of range, a batch size that the devices don't divide, or missing inputs.
    """
    _check(config)
    quiet_libraries()
    if result := _finished(config):
        return result
    parts.keep_compilations(config.output_path)
    parts.check_batch_size(config.batch_size)
    with local_tokenizer(config.tokenizer_path) as tokenizer:
        levanter_config = _levanter_config(config, tokenizer)
        if _newest_step(config) < config.num_train_steps - 1:
            from levanter.main import train_lm as levanter_train

            _remove_incomplete_checkpoints(config)
            levanter_train.main(levanter_config)  # never of a complete run: it would write the last checkpoint again
            _await_last_checkpoint(config)
        parameters = _export(config, levanter_config)
    return _finish(config, parameters)


def checkpoints_path(train_path: str) -> str:
    """Where the training with that output keeps its checkpoints."""
    return join(train_path, "checkpoints")


def export_path(train_path: str) -> str:
    """Where the training with that output puts its Hugging Face export."""
    return join(train_path, "hf")


def metrics_path(train_path: str) -> str:
    """Where the training with that output writes its metrics (see ``tradewind.recipes.metrics``)."""
    return join(train_path, "metrics.jsonl")


def result_path(train_path: str) -> str:
    """Where the training with that output writes its result: the last thing it does."""
    return join(train_path, "result.json")


def _check(config: LmTrainConfig) -> None:
    model_size(config.model_size)
    parts.check_seq_len(config.seq_len)
    for field in ("num_train_steps", "steps_per_eval", "steps_per_line"):
        if getattr(config, field) < 1:
            raise ValueError(f"{field}={getattr(config, field)} must be at least 1.")
    for field in ("learning_rate", "checkpoint_seconds"):
        if getattr(config, field) <= 0:
            raise ValueError(f"{field}={getattr(config, field)} must be above 0.")


def _finished(config: LmTrainConfig) -> dict[str, Any] | None:
    """The result of a training of this length that has ended already."""
    path = result_path(config.output_path)
    result: dict[str, Any] | None = read_json(path) if exists(path) else None
    return result if result and result["steps"] == config.num_train_steps else None


def _newest_step(config: LmTrainConfig) -> int:
    """Index of the last step in the newest complete checkpoint; -1 if there is none."""
    from levanter.checkpoint import discover_checkpoint_candidates

    candidates = discover_checkpoint_candidates(checkpoints_path(config.output_path))
    return candidates[-1].step if candidates else -1


def _remove_incomplete_checkpoints(config: LmTrainConfig) -> None:
    """Process 0 removes what a kill left half written, before any process goes on.

    Levanter would ignore it until it comes to that step again, and then write into it; with more or fewer devices than
    before that fails, since the chunks have another shape.
    """
    import jax
    from fsspec.core import url_to_fs
    from jax.experimental.multihost_utils import sync_global_devices

    if jax.process_index() == 0:
        fs, root = url_to_fs(checkpoints_path(config.output_path))
        for folder in fs.glob(join(root, "step-*")):
            if not fs.exists(join(folder, "metadata.json")):
                fs.rm(folder, recursive=True)
    sync_global_devices("tradewind: incomplete checkpoints removed")


def _await_last_checkpoint(config: LmTrainConfig) -> None:
    """Levanter writes checkpoints in the background and returns before the last one is complete; what is newest until
    then is an older one. Raises ``TimeoutError`` if it does not get there."""
    deadline = time.monotonic() + LAST_CHECKPOINT_SECONDS
    while _newest_step(config) < config.num_train_steps - 1:
        if time.monotonic() > deadline:
            raise TimeoutError(f"The last checkpoint under {config.output_path} was not complete in time.")
        time.sleep(0.2)


def _levanter_config(config: LmTrainConfig, tokenizer: str) -> TrainLmConfig:
    from levanter.main.train_lm import TrainLmConfig
    from levanter.optim.config import AdamConfig

    return TrainLmConfig(
        data=parts.cached_data(config.cache_path, tokenizer),
        model=parts.llama(config.model_size, config.seq_len, tokenizer),
        trainer=_trainer(config),
        optimizer=AdamConfig(
            learning_rate=config.learning_rate, weight_decay=config.weight_decay, warmup=0.1, min_lr_ratio=0.1
        ),
        hf_save_path=None,  # it would end up in hf/step-N; _export writes hf/
    )


def _trainer(config: LmTrainConfig) -> TrainerConfig:
    from levanter.checkpoint import CheckpointerConfig
    from levanter.distributed import DistributedConfig
    from levanter.trainer import TrainerConfig

    every = config.steps_per_checkpoint
    return TrainerConfig(
        id=basename(config.output_path),
        seed=config.seed,
        mp=parts.precision(),
        mesh=parts.mesh(),
        distributed=DistributedConfig(initialize_jax_distributed=False),
        require_accelerator=parts.on_tpu(),
        train_batch_size=config.batch_size,
        num_train_steps=config.num_train_steps,
        steps_per_eval=config.steps_per_eval,
        max_eval_batches=config.max_eval_batches,
        checkpointer=CheckpointerConfig(
            base_path=checkpoints_path(config.output_path),
            append_run_id_to_base_path=False,
            save_interval=timedelta(seconds=config.checkpoint_seconds),
            keep=[{"every": every}] if every else None,
        ),
        tracker=tracker_config(_tracking(config)),
        log_dir=_log_folder(config.output_path),
        log_jaxprs=False,
        log_xla_hlo=False,
    )


def _tracking(config: LmTrainConfig) -> TrackingOptions:
    return TrackingOptions(
        metrics_path=metrics_path(config.output_path),
        total_steps=config.num_train_steps,
        tokens_per_step=config.batch_size * config.seq_len,
        steps_per_line=config.steps_per_line,
    )


def _log_folder(output_path: str) -> Path:
    """Where Levanter's detailed log file goes, which all processes share; it must be a local folder."""
    if is_remote(output_path):
        return Path(tempfile.gettempdir()) / "tradewind-logs" / basename(output_path)
    return Path(output_path) / "logs"


def _export(config: LmTrainConfig, levanter_config: TrainLmConfig) -> int:
    """Write the newest checkpoint's model as a Hugging Face folder; returns the number of parameters.

    All processes take part: the weights are gathered from all devices.
    """
    from levanter.utils.jax_utils import parameter_count

    trainer, data = levanter_config.trainer, levanter_config.data
    with trainer.use_device_mesh():
        axes = model_axes(levanter_config.model, len(data.the_tokenizer), trainer.parameter_axis_mapping)
        model = load_checkpointed(axes, checkpoints_path(config.output_path))
        write_export(axes, model, data.the_tokenizer, export_path(config.output_path))
        return int(parameter_count(model))


def _finish(config: LmTrainConfig, parameters: int) -> dict[str, Any]:
    """Process 0 writes the result; no process returns before it is there."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    result = {
        "steps": config.num_train_steps,
        "parameters": parameters,
        "tokens": config.num_train_steps * config.batch_size * config.seq_len,
        "settings": asdict(config),
    }
    if jax.process_index() == 0:
        metrics = read_metrics(metrics_path(config.output_path))
        last = metrics[-1] if metrics and metrics[-1]["step"] == config.num_train_steps - 1 else {}
        result |= {"train_loss": last.get("train/loss"), "eval_loss": last.get("eval/loss")}
        write_json(result_path(config.output_path), result)
    sync_global_devices("tradewind: result written")
    return result
