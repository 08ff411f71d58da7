"""The model sizes that a config can name. Pure data: parameters are counted with a vocabulary of 1024."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSize:
    """The shape of a Llama model; the context length and the vocabulary come from elsewhere."""

    hidden_dim: int
    """Width of the residual stream."""
    intermediate_dim: int
    """Width inside the feed-forward layers."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Key and value heads; divides ``num_heads``."""


MODEL_SIZES = {
    "tiny": ModelSize(hidden_dim=64, intermediate_dim=192, num_layers=2, num_heads=4, num_kv_heads=2),
    "small": ModelSize(hidden_dim=128, intermediate_dim=384, num_layers=4, num_heads=4, num_kv_heads=2),
    "125m": ModelSize(hidden_dim=768, intermediate_dim=3072, num_layers=12, num_heads=12, num_kv_heads=12),
}
"""``tiny``: 0.2 million parameters (seconds on a CPU); ``small``: 1.0 million (a minute or two); ``125m``: for TPUs."""


def model_size(name: str) -> ModelSize:
    """The size of that name; raises ``ValueError`` naming the known ones."""
    if name not in MODEL_SIZES:
        raise ValueError(f"model_size={name!r} is unknown; the known sizes are {', '.join(MODEL_SIZES)}.")
    return MODEL_SIZES[name]
