"""What would make a training fail is found before a slice is reserved for it, and named with its field."""

from __future__ import annotations

from typing import Any

from tradewind.datasets.tokenizing.tokenizer_files import local_tokenizer
from tradewind.recipes.checkpoints.files import damage
from tradewind.recipes.checkpoints.newest import newest_checkpoint
from tradewind.recipes.checkpoints.stored_shapes import check_model, check_same_model
from tradewind.recipes.levanter import parts
from tradewind.recipes.levanter.config import levanter_config, source_checkpoint
from tradewind.recipes.levanter.hub_models import check_hub_model
from tradewind.recipes.lm.output import TrainingOutput
from tradewind.recipes.regions import check_regions
from tradewind.recipes.train_config import LmTrainConfig, checkpoint_roots, temporary_checkpoints_path

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
        parts.check_batch_size(config.batch_size, devices)
    check_regions({field: getattr(config, field) for field in _PATHS})
    parts.check_cache(config.cache_path)
    made = levanter_config(config, local_tokenizer(config.tokenizer_path))
    TrainingOutput(config.output_path, config.num_train_steps, temporary_checkpoints_path(config)).check_newest()
    _check_sound_begin(config)
    per_device = made.trainer.per_device_parallelism
    mesh = made.trainer.mesh if own_mesh else None
    parts.check_batch_size(config.batch_size, devices, mesh, num_slices, per_device=per_device)
    if not own_mesh:  # an own mesh may need more devices than there are here; then train_lm itself compares
        check_model(made, len(made.data.the_tokenizer), "model")
        check_checkpoints(config, made)


def _check_sound_begin(config: LmTrainConfig) -> None:
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
