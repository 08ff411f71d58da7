"""Train a language model with Levanter, on every host of a slice or in one process.

Each host's process calls ``train_lm`` once; if there are several, the caller initialises ``jax.distributed``. Process 0
writes. A call continues from the newest undamaged checkpoint of this training, and returns the result of a finished
one: after a kill, call it again.

``preflight`` finds errors, with their field, before a slice is reserved.
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
from tradewind.recipes.lm.chat_export import check_stop_tokens
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

__all__ = ["RESUMABLE", "LmTrainConfig", "checkpoints_path", "export_path", "metrics_path", "result_path", "train_lm"]

_MESH = "trainer.mesh"
_HUB = "levanter['initialize_from_hf']"
_PATHS = ("output_path", "temporary_checkpoint_path", "cache_path", "tokenizer_path", "initialize_from")


def preflight(config: LmTrainConfig, devices: int, num_slices: int = 1) -> None:
    """Check on a CPU all that ``train_lm`` needs to run on that many devices over all slices.

    Raises:
        ValueError: The devices do not divide the batch size, an input is missing, Levanter does not know a field, the
            initial checkpoint is of another model or damaged, or a bucket is in another region.
    """
    own_mesh = any(name == "trainer" or name.startswith(_MESH) for name in config.levanter)
    if not own_mesh:
        levanter_parts.check_batch_size(config.batch_size, devices)
    check_regions({field: getattr(config, field) for field in _PATHS})
    levanter_parts.check_cache(config.cache_path, config.seq_len)
    made = levanter_config(config, local_tokenizer(config.tokenizer_path))
    TrainingOutput(config.output_path, config.num_train_steps, temporary_checkpoints_path(config)).check_checkpoints()
    _check_initial_checkpoint(config)
    check_stop_tokens(made, "levanter['hf_generation_eos_token_ids']")
    per_device = made.trainer.per_device_parallelism
    mesh = made.trainer.mesh if own_mesh else None
    levanter_parts.check_batch_size(config.batch_size, devices, mesh, num_slices, per_device=per_device)
    if not own_mesh:  # an own mesh may need more devices than this process has; then train_lm checks
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
    """Raise ``ValueError`` if this training's newest checkpoint, or else its initial one, is of another model."""
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
    """Train, export, and return the result.

    On a preemption notice to the pod, the process saves a checkpoint and exits with code 76.

    Returns:
        Steps, parameters, tokens, ``train_loss`` and ``eval_loss`` of the last step in nats/token, ``flops`` (forward
        and backward), ``devices``, ``device_kind`` and ``device_flops`` (peak per second of one; None if unknown). A
        loss that Levanter's config switches off is ``None``. With averaged weights (``trainer.model_averaging``), the
        export and ``eval_loss`` are of those.

    Raises:
        ValueError: As ``train_lm.preflight``.
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
    summary = training_summary(made)
    if output.newest_step() < config.num_train_steps - 1:
        _train(config, made, summary)  # a complete run would write its last checkpoint again
    output.keep_last_checkpoint()
    parameters = _export(config, made)
    return _finish(config, parameters, summary)


train_lm.preflight = preflight  # type: ignore[attr-defined]  # called before a slice is reserved
train_lm.warm_imports = (  # type: ignore[attr-defined]  # imported first, and early by a standby
    "levanter.main.train_lm",
    "levanter.optim.config",
    "jax.experimental.multihost_utils",
)


def _output(config: LmTrainConfig) -> TrainingOutput:
    return TrainingOutput(config.output_path, config.num_train_steps, temporary_checkpoints_path(config))


def _resolve_initial_checkpoint(config: LmTrainConfig) -> None:
    """Let process 0 choose and record the initial checkpoint of another training; all processes wait."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    given = config.initialize_from
    if jax.process_index() == 0 and given is not None and _output(config).newest_step() < 0:
        with suppress(ValueError):  # every process raises it later
            if (checkpoint := source_checkpoint(config)) is not None:
                InitialCheckpointFile.of_begin(checkpoints_path(config.output_path)).write(
                    InitialCheckpoint(given, checkpoint)
                )
    sync_global_devices("tradewind: begin settled")


def _train(config: LmTrainConfig, made: TrainLmConfig, summary: TrainingSummary) -> None:
    import jax

    output = _output(config)
    newest = output.newest_step()
    if jax.process_index() == 0:
        resumed = [f"continues after step {newest + 1}/{config.num_train_steps}"] if newest >= 0 else []
        print("\n".join([*start_lines(summary, made), *resumed]), flush=True)
    expect_steps()
    train(with_trackers(made, config, newest + 1))
    output.await_last_checkpoint()


def _export(config: LmTrainConfig, made: TrainLmConfig) -> int:
    """Export the newest checkpoint's model to a Hugging Face folder; return the number of parameters.

    All processes take part, since the weights are on all devices.
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


def _finish(config: LmTrainConfig, parameters: int, summary: TrainingSummary) -> dict[str, Any]:
    """Let process 0 write the result; all processes wait for it."""
    import jax

    output = _output(config)
    result = {
        "steps": config.num_train_steps,
        "parameters": parameters,
        "tokens": config.num_train_steps * config.batch_size * config.seq_len,
        "flops": summary.flops,
        "devices": summary.devices,
        "device_kind": summary.device_kind,
        "device_flops": summary.device_flops,
        "settings": settings_of(config),
    }
    if jax.process_index() == 0:
        last = output.last_metrics()
        eval_loss = last.get(AVERAGED_LOSS, last.get("eval/loss"))
        result |= {"train_loss": last.get("train/loss"), "eval_loss": eval_loss}
        paths = {"checkpoint": output.last_checkpoint, "export": export_path(config.output_path)}
        print("\n".join(end_lines(result | paths | {"run_id": summary.run_id, "eval_losses": {}})), flush=True)
    output.write_result(result)
    return result
