"""Check that the values of a Levanter config fit its fields, since its classes accept any value.

The slice would find a wrong type late or never: a training with an infinite learning rate runs to its end without a
result. The check covers plain values by their declared types: numbers, texts, flags, and lists and mappings of these.
Defaults pass, and so does ``None``, which Levanter's classes use without declaring it.
"""

from __future__ import annotations

import dataclasses
import numbers
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from tradewind.steps.amounts import MAX_AMOUNT
from tradewind.text import truncated_repr

_MINIMA: Final[Mapping[str, tuple[float, ...]]] = {
    "trainer.num_train_steps": (1,),
    "trainer.steps_per_eval": (1,),
    "trainer.max_eval_batches": (1,),
    "trainer.per_device_parallelism": (1, -1),
    "trainer.per_device_eval_parallelism": (1, -1),
    "data.mixture_block_size": (1,),
    "optimizer.learning_rate": (0,),
    "optimizer.weight_decay": (0,),
    "z_loss_weight": (0,),
    "hf_save_steps": (0,),
}
"""Field → smallest value, and other valid ones."""
_PLAIN: Final[Mapping[Any, tuple[str, Callable[[Any], bool]]]] = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: _is_number(value, numbers.Integral)),
    float: ("a number", lambda value: _is_number(value, numbers.Real)),
    str: ("a text", lambda value: isinstance(value, (str, PurePath))),
    type(None): ("None", lambda value: value is None),
}


def check_values(config: Any, prefix: str = "train_config.") -> None:
    """Check every plain value of a config and of the configs in it.

    Args:
        config: A Levanter config.
        prefix: Prefix of a field's path in errors.

    Raises:
        ValueError: A value does not fit its field.
    """
    for path, wanted, value in _values(config, ""):
        least = _MINIMA.get(path)
        if not _fits(wanted, value):
            raise ValueError(f"{prefix}{path}={truncated_repr(value)}: give {_describe(wanted)}.")
        if least and value is not None and value < least[0] and value not in least[1:]:
            others = "".join(f", or {other:g}" for other in least[1:])
            raise ValueError(f"{prefix}{path}={truncated_repr(value)}: give at least {least[0]:g}{others}.")


def _values(config: Any, start: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, declared type and value of every field that is no default."""
    for field, wanted in _declared(type(config)).items():
        value, path = getattr(config, field.name), f"{start}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _values(value, f"{path}.")
        elif value is not None and value is not field.default:
            yield path, wanted, value
            if isinstance(value, Mapping):
                for name, inner in value.items():
                    if dataclasses.is_dataclass(inner) and not isinstance(inner, type):
                        yield from _values(inner, f"{path}[{name!r}].")


def _declared(kind: type) -> dict[dataclasses.Field[Any], Any]:
    """Return the fields of a class with their types; none if a type cannot be resolved."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return {}
    return {field: hints[field.name] for field in dataclasses.fields(kind)}


def _fits(wanted: Any, value: Any) -> bool:
    """Whether the value has that type, as far as both are plain."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(each, value) for each in inner)
    if wanted in _PLAIN:
        return _PLAIN[wanted][1](value)
    if origin is typing.Literal:
        return value in inner
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    is_list = isinstance(origin, type) and issubclass(origin, Sequence)
    if is_mapping or is_list:
        return _all_fit(value, inner, is_mapping)
    return True  # of another class: Levanter or its parser made it


def _all_fit(value: Any, inner: tuple[Any, ...], is_mapping: bool) -> bool:
    if is_mapping:
        return isinstance(value, Mapping) and (not inner or all(_fits(inner[1], each) for each in value.values()))
    if isinstance(value, (str, numbers.Number, Mapping)):
        return False
    if not isinstance(value, (list, tuple)) or not inner:
        return True
    if len(inner) == len(value) and Ellipsis not in inner:  # a tuple of fixed length
        return all(map(_fits, inner, value)) or all(_fits(inner[0], each) for each in value)
    return all(_fits(inner[0], each) for each in value)


def _describe(wanted: Any) -> str:
    """Describe the valid values of a field."""
    inner = typing.get_args(wanted) if typing.get_origin(wanted) in (typing.Union, types.UnionType) else (wanted,)
    words = [_PLAIN[each][0] if each in _PLAIN else str(each).replace("typing.", "") for each in inner]
    merged = ["a number" if "a number" in words and each == "a whole number" else each for each in words]
    return " or ".join(dict.fromkeys(merged))


def _is_number(value: Any, kind: type) -> bool:
    is_one = isinstance(value, kind) and not isinstance(value, bool)
    return is_one and bool(-MAX_AMOUNT <= value <= MAX_AMOUNT)  # excludes NaN
