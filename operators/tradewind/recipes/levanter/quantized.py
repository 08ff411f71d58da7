"""A training with int8 goes on from a checkpoint, like any other.

The operations of a quantized layer are part of its state and hold no arrays. Levanter gives such a part of a state one
name where it has many empty places, so that it can save the state and never load it.
"""

from __future__ import annotations

from functools import cache
from typing import Any


def check_quantized_begin(given: Any) -> None:
    """Levanter quantizes a model and then puts the one of Hugging Face, which is not quantized, into its place.

    Raises:
        ValueError: The training would end in an error after it has loaded the weights.
    """
    if given.initialize_from_hf and given.trainer.quantization is not None:
        raise ValueError(
            "train_config.trainer.quantization does not go with train_config.initialize_from_hf in Levanter: begin "
            "with initialize_from_checkpoint_path, or leave it out."
        )


@cache
def let_quantized_states_load() -> None:
    """Give every place of such a part its own name, or none, for the rest of this process."""
    import jax
    from levanter.utils import jax_utils

    levanters = jax_utils.leaf_key_paths

    def leaf_key_paths(pytree: Any, *arguments: Any, **options: Any) -> Any:
        if pytree is None or jax.tree_util.tree_leaves(pytree):
            return levanters(pytree, *arguments, **options)
        return pytree  # what is empty is its own tree of names

    jax_utils.leaf_key_paths = leaf_key_paths
