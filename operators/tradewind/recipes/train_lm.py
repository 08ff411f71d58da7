"""Train a language model with Levanter, on every host of a slice or in one process.

``train_lm`` is called once in each host's process, with ``jax.distributed`` initialised by the caller when there are
several. Every process runs the same function; process 0 writes. A call that finds a checkpoint of this training goes
on from the newest sound one, and a call that finds a finished training only reads its result: after a kill, call it
again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tradewind.datasets.tokenizer_files import local_tokenizer
from tradewind.recipes.checkpoints.resume import (
    InitialCheckpoint,
    InitialCheckpointFile,
    clean_up_checkpoints,
    damage,
    newest_checkpoint,
)
from tradewind.recipes.lm import levanter_parts
from tradewind.recipes.lm.data_locations import check_regions
from tradewind.recipes.lm.levanter_config import levanter_config, source_checkpoint, with_trackers
from tradewind.recipes.lm.levanter_parts import quiet_libraries
from tradewind.recipes.lm.pod_config import TrainingOutput
from tradewind.recipes.lm.stored_models import (
    check_hub_model,
    check_model,
    check_same_model,
    load_checkpointed,
    model_axes,
    write_export,
)
from tradewind.recipes.lm.trainer import train, with_simulated_slices
from tradewind.recipes.lm.training_summary import TrainingSummary, end_lines, start_lines, training_summary
from tradewind.recipes.metrics.tracking import AVERAGED_LOSS
from tradewind.recipes.train_config import (
    RESUMABLE,
    LmTrainConfig,
    checkpoint_roots,
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

# What would make a training fail is found before a slice is reserved for it, and named with its field.

_MESH = "trainer.mesh"
_HUB = "levanter['initialize_from_hf']"
_PATHS = ("output_path", "temporary_checkpoint_path", "cache_path", "tokenizer_path", "initialize_from")


def preflight(config: LmTrainConfig, devices: int, num_slices: int = 1) -> None:
    """Look at everything that ``train_lm`` needs, on a CPU, for a run on that many devices over all slices.

    Raises ``ValueError`` for a batch size that the devices don't divide, an input that is missing, a field that
    Levanter does not know, a checkpoint of another model or a damaged one to begin with, or a bucket in another region.
    """
    own_mesh = any(name == "trainer" or name.startswith(_MESH) for name in config.levanter)
    if not own_mesh:
        levanter_parts.check_batch_size(config.batch_size, devices)
    check_regions({field: getattr(config, field) for field in _PATHS})
    levanter_parts.check_cache(config.cache_path)
    made = levanter_config(config, local_tokenizer(config.tokenizer_path))
    TrainingOutput(config.output_path, config.num_train_steps, temporary_checkpoints_path(config)).check_newest()
    _check_initial_checkpoint(config)
    per_device = made.trainer.per_device_parallelism
    mesh = made.trainer.mesh if own_mesh else None
    levanter_parts.check_batch_size(config.batch_size, devices, mesh, num_slices, per_device=per_device)
    if not own_mesh:  # an own mesh may need more devices than there are here; then train_lm itself compares
        check_model(made, len(made.data.the_tokenizer), "model")
        check_checkpoints(config, made)


def _check_initial_checkpoint(config: LmTrainConfig) -> None:
    source = source_checkpoint(config)
    if source is None or newest_checkpoint(checkpoint_roots(config)) is not None:
        return
    if (wrong := damage(source)) is not None:
        raise ValueError(
            f"initialize_from: the checkpoint {source} is damaged, {wrong}: copy it again or give another."
        )


def check_checkpoints(config: LmTrainConfig, made: Any) -> None:
    """Raise ``ValueError`` if this training's newest checkpoint, or else what it begins with, is of another model."""
    newest = newest_checkpoint(checkpoint_roots(config))
    source = source_checkpoint(config)
    vocab_size = len(made.data.the_tokenizer)
    if newest is not None:
        check_same_model(made, vocab_size, newest.path, "output_path")
    elif source is not None:
        check_same_model(made, vocab_size, source, "initialize_from")
    if source is not None and made.initialize_from_hf:
        raise ValueError(f"initialize_from and {_HUB} both say what to begin with: give one of them.")
    if newest is None and made.initialize_from_hf:
        check_hub_model(made, made.initialize_from_hf, _HUB)


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
    levanter_parts.keep_compilations(config.output_path)
    output.remove_unfinished()
    clean_up_checkpoints(output.roots)
    output.check_newest()
    _resolve_initial_checkpoint(config)
    made = with_simulated_slices(levanter_config(config, local_tokenizer(config.tokenizer_path)))
    trainer = made.trainer
    per_device = trainer.per_device_parallelism
    levanter_parts.check_batch_size(
        config.batch_size, levanter_parts.device_count(), trainer.mesh, trainer.num_slices, per_device=per_device
    )
    check_checkpoints(config, made)
    facts = training_summary(made)
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


def _resolve_initial_checkpoint(config: LmTrainConfig) -> None:
    """Process 0 decides with which checkpoint of another training this one begins, and writes it down; all wait."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    given = config.initialize_from
    if jax.process_index() == 0 and given is not None and _output(config).newest_step() < 0:
        with suppress(ValueError):  # which every process will raise
            if (checkpoint := source_checkpoint(config)) is not None:
                InitialCheckpointFile.of_begin(checkpoints_path(config.output_path)).write(
                    InitialCheckpoint(given, checkpoint)
                )
    sync_global_devices("tradewind: begin settled")


def _train(config: LmTrainConfig, made: TrainLmConfig, facts: TrainingSummary) -> None:
    import jax

    output = _output(config)
    newest = output.newest_step()
    if jax.process_index() == 0:
        goes_on = [f"goes on after step {newest + 1}/{config.num_train_steps}"] if newest >= 0 else []
        print("\n".join([*start_lines(facts, made), *goes_on]), flush=True)
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
            dtype=levanter_parts.export_dtype(made.hf_save_dtype),
            generation_config=build_generation_config(data.the_tokenizer, made.hf_generation_eos_token_ids),
        )
        return int(parameter_count(model))


def _finish(config: LmTrainConfig, parameters: int, facts: TrainingSummary) -> dict[str, Any]:
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
        print("\n".join(end_lines(result | places | {"run_id": facts.run_id, "eval_losses": {}})), flush=True)
    output.write_result(result)
    return result
