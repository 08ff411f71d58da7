"""Models as they lie on the store: Levanter's checkpoints and Hugging Face exports, loaded onto the current mesh.

Call everything inside a device mesh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tradewind.recipes.checkpoints.stored_shapes import has_arrays

if TYPE_CHECKING:
    from levanter.models.llama import LlamaConfig

AVERAGED = "model_averaging/model"
"""Where a checkpoint has the averaged weights."""


@dataclass(frozen=True)
class ModelAxes:
    """What a stored model has to fit: its config, its vocabulary, and how its weights are sharded."""

    config: LlamaConfig
    vocab: Any
    """The Haliax axis, rounded up to what the mesh divides."""
    mapping: Any
    """From names of weight axes to axes of the mesh."""


def model_axes(config: LlamaConfig, vocab_size: int, mapping: Any) -> ModelAxes:
    """The axes that training used for a tokenizer with ``vocab_size`` tokens."""
    import haliax as hax
    from haliax.partitioning import round_axis_for_partitioning

    return ModelAxes(config, round_axis_for_partitioning(hax.Axis("vocab", vocab_size), mapping), mapping)


def load_checkpointed(axes: ModelAxes, checkpoints: str) -> Any:
    """The model of the newest complete checkpoint under ``checkpoints``; raises ``FileNotFoundError`` without one.

    Its weights are the averaged ones, if the training kept any: those that Levanter takes for evaluation and export.
    """
    import equinox as eqx
    import jax
    from levanter.checkpoint import latest_checkpoint_path, load_checkpoint

    shape = eqx.filter_eval_shape(axes.config.build, axes.vocab, key=jax.random.PRNGKey(0))
    path = latest_checkpoint_path(checkpoints)
    weights = AVERAGED if has_arrays(path, AVERAGED) else "model"
    policy = f"{weights}/policy"  # where a training by preferences has its model
    return load_checkpoint(
        shape, path, subpath=policy if has_arrays(path, policy) else weights, axis_mapping=axes.mapping
    )


def write_export(
    axes: ModelAxes, model: Any, tokenizer: Any, path: str, *, dtype: Any = None, generation_config: Any = None
) -> None:
    """Write ``model`` and ``tokenizer`` as a Hugging Face folder. All processes of the mesh must call this.

    The weights are written as ``dtype``; as they are if there is none.
    """
    _converter(axes, tokenizer).save_pretrained(model, path, dtype=dtype, generation_config=generation_config)


def load_export(axes: ModelAxes, tokenizer: Any, path: str, precision: Any) -> Any:
    """The model of the Hugging Face folder ``path``, in the precision of parameters."""
    converter = _converter(axes, tokenizer).replaced(reference_checkpoint=path)
    return converter.load_pretrained(
        axes.config.model_type, ref=path, config=axes.config, axis_mapping=axes.mapping, dtype=precision.param_dtype
    )


def _converter(axes: ModelAxes, tokenizer: Any) -> Any:
    return axes.config.hf_checkpoint_converter().replaced(tokenizer=tokenizer)
