"""Models of a step: named sizes, the part that counts in the version, and checks of sizes.

Sizes are checked twice: while a DAG file is parsed, as far as it gives them, and before a slice is reserved, with the
classes' defaults. Levanter builds a model without layers, or with heads that rotary embeddings cannot rotate. Then only
its first step on the slice would fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.steps import ExecutorStep, InputName, MirroredValue, OutputName, VersionedValue, ensure_versioned, lazy
from tradewind.steps.fields import integer
from tradewind.steps.placeholders import Lazy
from tradewind.steps.run_values import RunValue
from tradewind.text import truncated_repr

PLACEHOLDERS: Final = (ExecutorStep, InputName, MirroredValue, OutputName, VersionedValue)
_SIZES: Final = {
    **dict.fromkeys(("hidden_dim", "intermediate_dim", "num_layers", "num_heads", "num_kv_heads"), integer(1)),
    "head_dim": integer(1).or_none(),
    "max_seq_len": integer(2),
}
"""Valid values of the fields of these names, in any model."""
_OF_MARIN: Final = "__legacy__"
"""Attribute of the classes of ``tradewind.marin.legacy``."""


@dataclass(frozen=True)
class ModelSize:
    """Shape of a Llama model, without context length and vocabulary."""

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
"""``tiny``: 0.2 million parameters (seconds on a CPU); ``small``: 1.0 million (a minute or two); ``125m``: for TPUs.

Parameters are counted with a vocabulary of 1024."""


def model_size(name: str) -> ModelSize:
    """Return the size of that name; raises ``ValueError`` with the known ones."""
    if name not in MODEL_SIZES:
        raise ValueError(f"model_size={name!r} is unknown; the known sizes are {', '.join(MODEL_SIZES)}.")
    return MODEL_SIZES[name]


def model_inputs(model: Any) -> dict[str, Any]:
    """Return the fields of a recipe's config that define the model.

    A lazy object's class is not part of a version by itself, so it replaces the size, which is not read then.

    Raises:
        ValueError: It is no model, or has an impossible size.
    """
    if isinstance(model, Lazy):
        check_sizes(model)
        return {"model": versioned_value(model), "model_size": ensure_versioned(_classes(model))}
    if dataclasses.is_dataclass(model) and hasattr(model, _OF_MARIN):
        raise ValueError(
            f"model is a {type(model).__name__} of Marin's, which only default_train with a SimpleTrainConfig takes: "
            f"give lazy('{type(model).__module__}:{type(model).__name__}', max_seq_len=..., ...) with its sizes."
        )
    if dataclasses.is_dataclass(model) and not isinstance(model, PLACEHOLDERS) and hasattr(model, "max_seq_len"):
        check_sizes(model)
        return {"model": ensure_versioned(model), "model_size": ensure_versioned(type(model).__qualname__)}
    given = model.value if isinstance(model, VersionedValue) else model
    if given is not None and not isinstance(given, (RunValue, str)):
        sizes = ", ".join(MODEL_SIZES)
        raise ValueError(
            f"model is {truncated_repr(model)}, which is no model: give a size ({sizes}), lazy(...) or Levanter's "
            "config."
        )
    return {} if model is None else {"model": None, "model_size": ensure_versioned(model)}


def versioned_value(value: Any) -> Any:
    """Make ``value`` part of the version: fields of a lazy object one by one, references as they are."""
    if isinstance(value, Lazy):
        return lazy(value.target, **{field: versioned_value(inner) for field, inner in value.kwargs.items()})
    return value if isinstance(value, PLACEHOLDERS) else ensure_versioned(value)


def check_sizes(model: Any, field: str = "model") -> None:
    """Raise ``ValueError`` with the field for an impossible size, as far as sizes are known."""
    known = _fields(model)
    for name, rule in _SIZES.items():
        if name in known:
            rule.check(f"{field}.{name}", known[name])
    if not isinstance(model, Lazy):  # a class may set head_dim
        _check_heads(known, field)


def check_context(model: Any, seq_len: Any, field: str = "seq_len") -> None:
    """Raise ``ValueError`` for sequences longer than the model's context, as far as both are known."""
    max_length, length = context_of(model), _value(seq_len)
    if max_length is not None and isinstance(length, int) and length > max_length:
        raise ValueError(f"{field}={length} is longer than the model's context, max_seq_len={max_length}.")


def context_of(model: Any) -> int | None:
    """Return the context length of a model; None if only a run, or the class, sets it."""
    known = _fields(model)
    length = _value(known.get("max_seq_len", known.get("seq_len")))
    return length if isinstance(length, int) else None


def _check_heads(known: Mapping[str, Any], field: str) -> None:
    width, heads, size = (_value(known.get(name)) for name in ("hidden_dim", "num_heads", "head_dim"))
    if size is None:
        if not isinstance(width, int) or not isinstance(heads, int):
            return
        if width % heads:
            raise ValueError(f"{field}.hidden_dim={width}: give a multiple of num_heads, {heads}.")
        size = width // heads
    if known.get("rope") is not None and size % 2:
        raise ValueError(
            f"{field} has heads of {size} numbers, which rotary embeddings rotate in pairs: give an even head_dim, or "
            "a hidden_dim that is an even multiple of num_heads."
        )


def _fields(model: Any) -> Mapping[str, Any]:
    given = _value(model)
    if isinstance(given, Lazy):
        return given.kwargs
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    return {}


def _value(given: Any) -> Any:
    return given.value if isinstance(given, VersionedValue) else given


def _classes(value: Lazy) -> str:
    """Return the class of a lazy object, with those of the lazy objects in it."""
    inner = [f"{field}={_classes(each)}" for field, each in sorted(value.kwargs.items()) if isinstance(each, Lazy)]
    return f"{value.target}({', '.join(inner)})" if inner else value.target
