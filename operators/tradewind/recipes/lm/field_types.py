"""Do the values of a config of Levanter's fit its fields? Its classes take whatever they are given.

A number that is none, or not finite, or a text in its place, would be found out on the slice, or never: a learning rate
that is not finite trains all its steps and ends with nothing. Only what is plain is judged, by the types that the
class declares: numbers, texts, flags, and lists and mappings of these. ``None`` passes, since Levanter's classes have
it where they do not declare it, and so does a default.
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

_LEAST: Final[Mapping[str, tuple[float, ...]]] = {
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
"""Field -> the smallest value it takes, and what else it takes."""
_PLAIN: Final[Mapping[Any, tuple[str, Callable[[Any], bool]]]] = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: _is_number(value, numbers.Integral)),
    float: ("a number", lambda value: _is_number(value, numbers.Real)),
    str: ("a text", lambda value: isinstance(value, (str, PurePath))),
    type(None): ("None", lambda value: value is None),
}


def check_values(config: Any, prefix: str = "train_config.") -> None:
    """Look at every plain value of a config and of the configs in it.

    Args:
        config: Of Levanter's.
        prefix: Stands before a field's path in what is told.

    Raises:
        ValueError: One does not fit its field.
    """
    for path, wanted, value in _values(config, ""):
        least = _LEAST.get(path)
        if not _fits(wanted, value):
            raise ValueError(f"{prefix}{path}={truncated_repr(value)}: give {_said(wanted)}.")
        if least and value is not None and value < least[0] and value not in least[1:]:
            others = "".join(f", or {other:g}" for other in least[1:])
            raise ValueError(f"{prefix}{path}={truncated_repr(value)}: give at least {least[0]:g}{others}.")


def _values(config: Any, start: str) -> Iterator[tuple[str, Any, Any]]:
    """Path, declared type and value of every field that is no default."""
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
    """The fields of a class with their types; none where a type is a name that nobody can look up."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return {}
    return {field: hints[field.name] for field in dataclasses.fields(kind)}


def _fits(wanted: Any, value: Any) -> bool:
    """Whether the value is of that type, as far as both are plain."""
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
    return True  # of a class: whatever is given, Levanter or its parser made it


def _all_fit(value: Any, inner: tuple[Any, ...], is_mapping: bool) -> bool:
    if is_mapping:
        return isinstance(value, Mapping) and (not inner or all(_fits(inner[1], each) for each in value.values()))
    if isinstance(value, (str, numbers.Number, Mapping)):
        return False
    if not isinstance(value, (list, tuple)) or not inner:
        return True
    if len(inner) == len(value) and Ellipsis not in inner:  # a tuple of so many
        return all(map(_fits, inner, value)) or all(_fits(inner[0], each) for each in value)
    return all(_fits(inner[0], each) for each in value)


def _said(wanted: Any) -> str:
    """What a field takes, in words."""
    inner = typing.get_args(wanted) if typing.get_origin(wanted) in (typing.Union, types.UnionType) else (wanted,)
    said = [_PLAIN[each][0] if each in _PLAIN else str(each).replace("typing.", "") for each in inner]
    numbers_said = ["a number" if "a number" in said and each == "a whole number" else each for each in said]
    return " or ".join(dict.fromkeys(numbers_said))


def _is_number(value: Any, kind: type) -> bool:
    is_one = isinstance(value, kind) and not isinstance(value, bool)
    return is_one and bool(-MAX_AMOUNT <= value <= MAX_AMOUNT)  # NaN is neither
