"""Train a language model with Levanter, on every host of a slice or in one process.

``train_lm`` is called once in each host's process, with ``jax.distributed`` initialised by the caller when there are
several. Every process runs the same function; process 0 writes. A call that finds a checkpoint of this training goes
on from the newest sound one, and a call that finds a finished training only reads its result: after a kill, call it
again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tradewind.datasets.tokenizing.tokenizer_files import local_tokenizer
from tradewind.recipes.checkpoints.newest import settle_checkpoints
from tradewind.recipes.checkpoints.taken import TakenCheckpoint, TakenFile
from tradewind.recipes.levanter import parts
from tradewind.recipes.levanter.config import levanter_config, source_checkpoint, with_trackers
from tradewind.recipes.levanter.quiet import quiet_libraries
from tradewind.recipes.levanter.simulated_slices import on_these_devices
from tradewind.recipes.levanter.stored_models import load_checkpointed, model_axes, write_export
from tradewind.recipes.levanter.trainer import train
from tradewind.recipes.lm.facts import TrainingFacts, beginning, ending, facts_of
from tradewind.recipes.lm.output import TrainingOutput
from tradewind.recipes.metrics.tracking import AVERAGED_LOSS
from tradewind.recipes.preflight import check_checkpoints, preflight
from tradewind.recipes.train_config import (
    RESUMABLE,
    LmTrainConfig,
    checkpoints_path,
    export_path,
    metrics_path,
    result_path,
    settings_of,
    temporary_checkpoints_path,
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


def train_lm(config: LmTrainConfig) -> dict[str, Any]:
    """Train, export, and return the result: steps, parameters, tokens, ``train_loss`` and ``eval_loss`` in nats/token.

    Beside them ``flops`` (forward and backward), ``devices``, ``device_kind`` and ``device_flops`` (a second, of one,
    at most; None where nobody knows).

    The losses are those of the last step; one that the overrides of Levanter's config switched off is ``None``. With
    averaged weights (``trainer.model_averaging``) the export holds those, and ``eval_loss`` is theirs.
    When the pod has a notice of its preemption, the process saves a checkpoint and ends with exit code 76.

    Raises ``ValueError`` for what ``train_lm.preflight`` would have refused.
    """
    quiet_libraries()
    output = _output(config)
    if result := output.result():
        return result
    parts.keep_compilations(config.output_path)
    output.remove_unfinished()
    settle_checkpoints(output.roots)
    output.check_newest()
    _settle_begin(config)
    made = on_these_devices(levanter_config(config, local_tokenizer(config.tokenizer_path)))
    trainer = made.trainer
    per_device = trainer.per_device_parallelism
    parts.check_batch_size(
        config.batch_size, parts.device_count(), trainer.mesh, trainer.num_slices, per_device=per_device
    )
    check_checkpoints(config, made)
    facts = facts_of(made)
    if output.newest_step() < config.num_train_steps - 1:
        _train(config, made, facts)  # never of a complete run: it would write the last checkpoint again
    output.keep_last_checkpoint()
    parameters = _export(config, made)
    return _finish(config, parameters, facts)


train_lm.preflight = preflight  # type: ignore[attr-defined]  # the step driver calls it before it reserves a slice
train_lm.warm_imports = (  # type: ignore[attr-defined]  # before all else, and early by processes that wait on a free slice
    "levanter.main.train_lm",
    "levanter.optim.config",
    "jax.experimental.multihost_utils",
)


def _output(config: LmTrainConfig) -> TrainingOutput:
    return TrainingOutput(config.output_path, config.num_train_steps, temporary_checkpoints_path(config))


def _settle_begin(config: LmTrainConfig) -> None:
    """Process 0 decides with which checkpoint of another training this one begins, and writes it down; all wait."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    given = config.initialize_from
    if jax.process_index() == 0 and given is not None and _output(config).newest_step() < 0:
        with suppress(ValueError):  # which every process will raise
            if (checkpoint := source_checkpoint(config)) is not None:
                TakenFile.of_begin(checkpoints_path(config.output_path)).write(TakenCheckpoint(given, checkpoint))
    sync_global_devices("tradewind: begin settled")


def _train(config: LmTrainConfig, made: TrainLmConfig, facts: TrainingFacts) -> None:
    import jax

    output = _output(config)
    newest = output.newest_step()
    if jax.process_index() == 0:
        goes_on = [f"goes on after step {newest + 1}/{config.num_train_steps}"] if newest >= 0 else []
        print("\n".join([*beginning(facts, made), *goes_on]), flush=True)
    expect_steps()
    train(with_trackers(made, config, newest + 1))
    output.await_last_checkpoint()


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


def _finish(config: LmTrainConfig, parameters: int, facts: TrainingFacts) -> dict[str, Any]:
    """Process 0 writes the result; no process returns before it is there."""
    import jax

    output = _output(config)
    result = {
        "steps": config.num_train_steps,
        "parameters": parameters,
        "tokens": config.num_train_steps * config.batch_size * config.seq_len,
        "flops": facts.flops,
        "devices": facts.devices,
        "device_kind": facts.device_kind,
        "device_flops": facts.device_flops,
        "settings": settings_of(config),
    }
    if jax.process_index() == 0:
        last = output.last_metrics()
        eval_loss = last.get(AVERAGED_LOSS, last.get("eval/loss"))
        result |= {"train_loss": last.get("train/loss"), "eval_loss": eval_loss}
        places = {"checkpoint": output.last_checkpoint, "export": export_path(config.output_path)}
        print("\n".join(ending(result | places | {"run_id": facts.run_id, "eval_losses": {}})), flush=True)
    output.write_result(result)
    return result
