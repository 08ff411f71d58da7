"""Marin's Llama models of all sizes, with their vocabulary."""

from __future__ import annotations

from typing import Any, Final

from tradewind.marin.legacy.classes import builder
from tradewind.marin.legacy.tokenizers import SIZES
from tradewind.marin.names.steps import unversioned
from tradewind.steps import ExecutorStep, InputName
from tradewind.text import truncated_repr

__all__ = ["LLAMAS", "llama", "llama3_tokenizer", "llama3_tokenizer_vocab_size"]

llama3_tokenizer: Final = "meta-llama/Meta-Llama-3.1-8B"
llama3_tokenizer_vocab_size: Final = SIZES[llama3_tokenizer][1]

_SIZES: Final = {
    # name: seq_len, hidden_dim, intermediate_dim, num_heads, num_kv_heads, num_layers
    "llama_nano": (512, 32, 128, 2, 2, 2),
    "llama_30m": (1024, 128, 448, 2, 2, 4),
    "llama_50m": (1024, 192, 448, 2, 2, 4),
    "llama_75m": (1024, 256, 896, 4, 4, 8),
    "llama_150m": (1024, 512, 1792, 8, 8, 6),
    "llama_300m": (1024, 768, 2688, 12, 12, 12),
    "llama_600m": (1024, 1024, 3584, 16, 8, 24),
    "llama_1_4b": (4096, 2048, 7168, 16, 8, 16),
    "llama_1_9b": (4096, 2048, 7168, 16, 8, 24),
    "llama_3_2_1b": (4096, 2048, 8192, 32, 8, 16),
    "llama_3_5b": (4096, 2560, 8960, 20, 10, 32),
    "llama_8b": (4096, 4096, 14336, 32, 8, 32),
    "llama_8b_old_rotary": (4096, 4096, 14336, 32, 8, 32),
    "llama_13b": (4096, 5120, 13824, 40, 8, 40),
    "llama_24b": (4096, 6144, 16384, 48, 16, 56),
    "llama_32b": (4096, 5120, 27648, 40, 8, 64),
    "llama_56b": (4096, 8192, 28672, 64, 8, 64),
    "llama_70b": (4096, 8192, 28672, 64, 8, 80),
}
_FIELDS: Final = ("seq_len", "hidden_dim", "intermediate_dim", "num_heads", "num_kv_heads", "num_layers")
_LLAMA_3_ROPE: Final = frozenset(
    {"llama_3_2_1b", "llama_8b", "llama_13b", "llama_24b", "llama_32b", "llama_56b", "llama_70b"}
)
_TIED: Final = frozenset({"llama_3_2_1b"})
LLAMAS: Final = tuple(_SIZES)
"""The names of all models."""


def llama(name: str) -> Any:
    """Return the ``LlamaConfig`` of that name, such as ``llama_150m``.

    Raises:
        ValueError: No model has that name.
    """
    if name not in _SIZES:
        raise ValueError(f"{name} is no model of Marin: there are {', '.join(LLAMAS)}.")
    find = builder().find
    more: dict[str, Any] = {"tie_word_embeddings": True} if name in _TIED else {}
    if name in _LLAMA_3_ROPE:
        more["rope"] = find("levanter.layers.rotary.Llama3RotaryEmbeddingsConfig")()
    return find("levanter.models.llama.LlamaConfig")(**dict(zip(_FIELDS, _SIZES[name], strict=True)), **more)


def check_model(model: Any) -> None:
    """Raise ``ValueError`` unless this is a model config; size names are for ``train`` only."""
    given = unversioned(model)
    if given is None or isinstance(given, (str, InputName, ExecutorStep)):
        raise ValueError(
            f"model_config is {truncated_repr(model)}, which is no model: give one such as llama('llama_150m') or "
            "lazy('levanter.models.llama:LlamaConfig', max_seq_len=..., ...)."
        )


def __getattr__(name: str) -> Any:
    if name in _SIZES:
        return llama(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
