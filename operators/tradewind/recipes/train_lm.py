"""Train a language model with Levanter, on every host of a slice or in one process.

``train_lm`` is called once in each host's process, with ``jax.distributed`` initialised by the caller when there are
several. Every process runs the same function; process 0 writes. A call that finds a checkpoint of this training goes
on from the newest sound one, and a call that finds a finished training only reads its result: after a kill, call it
again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tradewind.datasets.files import exists, join, read_json, remove_unfinished, write_json
from tradewind.recipes.checkpoints.files import METADATA
from tradewind.recipes.checkpoints.newest import make_permanent, newest_checkpoint, remove_temporary, settle_checkpoints
from tradewind.recipes.levanter import parts
from tradewind.recipes.levanter.config import levanter_config, with_trackers
from tradewind.recipes.levanter.quiet import quiet_libraries
from tradewind.recipes.levanter.simulated_slices import on_these_devices
from tradewind.recipes.levanter.stored_models import load_checkpointed, model_axes, write_export
from tradewind.recipes.levanter.trainer import train
from tradewind.recipes.metrics.file import read_metrics
from tradewind.recipes.metrics.tracking import AVERAGED_LOSS
from tradewind.recipes.preflight import check_checkpoints, preflight
from tradewind.recipes.tokenizers import local_tokenizer
from tradewind.recipes.train_config import (
    RESUMABLE,
    LmTrainConfig,
    checkpoint_roots,
    checkpoints_path,
    export_path,
    metrics_path,
    result_path,
    settings_of,
)
from tradewind.runtime.pods.on_host.heartbeat import expect_steps

if TYPE_CHECKING:
    from levanter.main.train_lm import TrainLmConfig

__all__ = [
    "RESUMABLE",
    "LmTrainConfig",
    "checkpoints_path",
    "export_path",
    "metrics_path",
    "result_path",
    "train_lm",
]

LAST_CHECKPOINT_S = 900.0
"""How long the last checkpoint may take to reach the store after the last step."""


def train_lm(config: LmTrainConfig) -> dict[str, Any]:
    """Train, export, and return the result: steps, parameters, tokens, ``train_loss`` and ``eval_loss`` in nats/token.

    The losses are those of the last step; one that the overrides of Levanter's config switched off is ``None``. With
    averaged weights (``trainer.model_averaging``) the export holds those, and ``eval_loss`` is theirs.
    When the pod has a notice of its preemption, the process saves a checkpoint and ends with exit code 76.

    Raises ``ValueError`` for what ``train_lm.preflight`` would have refused.
    """
    quiet_libraries()
    if result := _finished(config):
        return result
    parts.keep_compilations(config.output_path)
    made = on_these_devices(levanter_config(config, local_tokenizer(config.tokenizer_path)))
    parts.check_batch_size(config.batch_size, parts.device_count(), made.trainer.mesh, made.trainer.num_slices)
    _remove_unfinished(config)
    settle_checkpoints(checkpoint_roots(config))
    check_checkpoints(config, made)
    if _newest_step(config) < config.num_train_steps - 1:
        _train(config, made)  # never of a complete run: it would write the last checkpoint again
    _keep_last_checkpoint(config)
    parameters = _export(config, made)
    return _finish(config, parameters)


train_lm.preflight = preflight  # type: ignore[attr-defined]  # the step driver calls it before it reserves a slice
train_lm.warm_imports = (  # type: ignore[attr-defined]  # before all else, and early by processes that wait on a free slice
    "levanter.main.train_lm",
    "levanter.optim.config",
    "jax.experimental.multihost_utils",
)


def _finished(config: LmTrainConfig) -> dict[str, Any] | None:
    """The result of a training of this length that has ended already."""
    path = result_path(config.output_path)
    result: dict[str, Any] | None = read_json(path) if exists(path) else None
    return result if result and result["steps"] == config.num_train_steps else None


def _remove_unfinished(config: LmTrainConfig) -> None:
    """Process 0 removes what a killed one was writing: a start after a preemption is no new attempt, which would."""
    import jax

    if jax.process_index() == 0:
        remove_unfinished(config.output_path)


def _newest_step(config: LmTrainConfig) -> int:
    """Index of the last step in the newest complete checkpoint; -1 if there is none."""
    newest = newest_checkpoint(checkpoint_roots(config))
    return -1 if newest is None else newest.step


def _train(config: LmTrainConfig, made: TrainLmConfig) -> None:
    import jax

    newest = _newest_step(config)
    if newest >= 0 and jax.process_index() == 0:
        print(f"goes on after step {newest + 1}/{config.num_train_steps}", flush=True)
    expect_steps()
    train(with_trackers(made, config, newest + 1))
    _await_last_checkpoint(config)


def _await_last_checkpoint(config: LmTrainConfig) -> None:
    """Levanter writes checkpoints in the background and returns before the last one is complete; what is newest until
    then is an older one. Raises ``TimeoutError`` if it does not get there."""
    deadline = time.monotonic() + LAST_CHECKPOINT_S
    last = join(checkpoints_path(config.output_path), f"step-{config.num_train_steps - 1}", METADATA)
    while _newest_step(config) < config.num_train_steps - 1 or not exists(last):
        if time.monotonic() > deadline:
            raise TimeoutError(f"The last checkpoint under {config.output_path} was not complete in time.")
        time.sleep(0.2)


def _keep_last_checkpoint(config: LmTrainConfig) -> None:
    """Process 0 leaves the last checkpoint, as a permanent one, and the other permanent ones."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    roots = checkpoint_roots(config)
    if jax.process_index() == 0:
        newest = newest_checkpoint(roots)
        if newest is not None and newest.is_temporary:
            make_permanent(newest, roots[0])
        remove_temporary(roots)
    sync_global_devices("tradewind: last checkpoint kept")


def _export(config: LmTrainConfig, made: TrainLmConfig) -> int:
    """Write the newest checkpoint's model as a Hugging Face folder; returns the number of parameters.

    All processes take part: the weights are gathered from all devices.
    """
    from levanter.compat.hf_checkpoints import build_generation_config
    from levanter.utils.jax_utils import parameter_count

    trainer, data = made.trainer, made.data
    with trainer.use_device_mesh():
        axes = model_axes(made.model, len(data.the_tokenizer), trainer.parameter_axis_mapping)
        model = load_checkpointed(axes, checkpoints_path(config.output_path))
        write_export(
            axes,
            model,
            data.the_tokenizer,
            export_path(config.output_path),
            dtype=parts.export_dtype(made.hf_save_dtype),
            generation_config=build_generation_config(data.the_tokenizer, made.hf_generation_eos_token_ids),
        )
        return int(parameter_count(model))


def _finish(config: LmTrainConfig, parameters: int) -> dict[str, Any]:
    """Process 0 writes the result; no process returns before it is there."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    result = {
        "steps": config.num_train_steps,
        "parameters": parameters,
        "tokens": config.num_train_steps * config.batch_size * config.seq_len,
        "settings": settings_of(config),
    }
    if jax.process_index() == 0:
        metrics = read_metrics(metrics_path(config.output_path))
        last = metrics[-1] if metrics and metrics[-1]["step"] == config.num_train_steps - 1 else {}
        eval_loss = last.get(AVERAGED_LOSS, last.get("eval/loss"))
        result |= {"train_loss": last.get("train/loss"), "eval_loss": eval_loss}
        write_json(result_path(config.output_path), result)
    sync_global_devices("tradewind: result written")
    return result
