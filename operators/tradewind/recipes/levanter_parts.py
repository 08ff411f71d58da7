"""The parts of Levanter's configuration that training, evaluation and the token cache share.

This module may be imported anywhere; its functions load Levanter, so they are called on the cluster, inside a step.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tradewind.datasets.files import exists, join, parent
from tradewind.recipes.model_sizes import model_size

if TYPE_CHECKING:
    from levanter.data.text import LmDataConfig
    from levanter.models.llama import LlamaConfig

COMPONENT = "corpus"
"""Levanter's name for our one data set; also the folder inside a token cache."""
SPLITS = ("train", "validation")


def llama(size: str, seq_len: int, tokenizer: str) -> LlamaConfig:
    """The Llama of that size with a context of ``seq_len`` tokens.

    ``tokenizer`` (a local folder) is also the reference checkpoint: Levanter would look for both on a hub otherwise.
    """
    from levanter.models.llama import LlamaConfig

    shape = model_size(size)
    return LlamaConfig(
        max_seq_len=seq_len,
        hidden_dim=shape.hidden_dim,
        intermediate_dim=shape.intermediate_dim,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        gradient_checkpointing=shape.hidden_dim >= 512,  # small activations are cheaper to keep than to recompute
        tokenizer=tokenizer,
        reference_checkpoint=tokenizer,
    )


def cached_data(cache_path: str, tokenizer: str) -> LmDataConfig:
    """The token cache at ``cache_path``, to read. Raises ``ValueError`` if a split is not there."""
    from levanter.data.text import DatasetComponent, LmDataConfig

    for split in SPLITS:
        if not exists(join(cache_path, COMPONENT, split, "shard_ledger.json")):
            raise ValueError(f"There is no finished token cache for {split} under cache_path {cache_path}.")
    return LmDataConfig(
        tokenizer=tokenizer,
        cache_dir=cache_path,
        auto_build_caches=False,
        components={COMPONENT: DatasetComponent()},
        shuffle=True,  # Levanter's default keeps neighbours together, and small batches would then be of one document
        mixture_block_size=64,
    )


def on_tpu() -> bool:
    """Whether JAX computes on TPUs here."""
    import jax

    return bool(jax.default_backend() == "tpu")


def precision() -> Any:
    """Levanter's mixed-precision policy: bfloat16 arithmetic on a TPU, float32 throughout elsewhere."""
    import jmp

    return jmp.get_policy("p=f32,c=bfloat16" if on_tpu() else "f32")


def mesh() -> Any:
    """All devices of all hosts along the data axis."""
    from levanter.utils.mesh import MeshConfig

    return MeshConfig(axes={"data": -1})


def device_count() -> int:
    """Devices of all hosts."""
    import jax

    return jax.device_count()


def all_tokens(cache: Any) -> Any:
    """All tokens of a split of a token cache in a row: int32, shape ``[tokens]``."""
    import numpy as np

    return np.asarray(cache.store.tree["input_ids"].data[0 : cache.store.tree["input_ids"].data_size].read().result())


def check_batch_size(batch_size: int) -> None:
    """Raise ``ValueError`` unless the devices of all hosts divide ``batch_size``."""
    devices = device_count()
    if batch_size < 1 or batch_size % devices:
        raise ValueError(f"batch_size={batch_size} is not a positive multiple of the number of devices, {devices}.")


def check_seq_len(seq_len: int) -> None:
    """Raise ``ValueError`` if there is nothing to predict in a sequence of that many tokens."""
    if seq_len < 2:
        raise ValueError(f"seq_len={seq_len}: a sequence needs at least two tokens.")


def keep_compilations(output_path: str) -> None:
    """Keep JAX's compilations beside the outputs, where a restarted slice finds them.

    The thresholds matter: by default JAX keeps only what took a second to compile.
    """
    import jax

    folder = join(parent(output_path), "compilation-cache")
    jax.config.update("jax_compilation_cache_dir", folder if "://" in folder else os.path.abspath(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
