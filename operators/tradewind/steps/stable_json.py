"""The JSON text of a versioned value: equal in every process, or an error.

The encoding is E20's, so that Marin's outputs are found. Values are refused if E20 encodes them differently per process
(functions, sets, objects whose text holds an address) or without their content (placeholders).
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import pathlib
import re
import types
from enum import Enum
from functools import partial
from typing import Any, Final

from tradewind.steps.errors import StepConfigError
from tradewind.steps.placeholders import InputName, Lazy, MirroredValue, OutputName
from tradewind.steps.run_values import RunValue
from tradewind.steps.step import ExecutorStep, Recipe

logger = logging.getLogger(__name__)

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    partial,
)
_PLACEHOLDERS = (InputName, OutputName, ExecutorStep, MirroredValue, RunValue, Lazy)
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
SYNTHETIC_MODULES: Final = ("unusual_prefix_", "__main__")
"""Names, or prefixes of names, of modules that Airflow or Python runs as a file instead of importing."""
_GENERATED_NAME = re.compile("|".join(rf"\b{name}" for name in SYNTHETIC_MODULES))
_SELF_DESCRIBING = (datetime.date, pathlib.PurePath, bytes, complex, type)


def encode(value: Any, recipe: Recipe = Recipe.JUNE_2026) -> str:
    """Encode ``value`` as the recipe writes it into the hashed text.

    Raises:
        TypeError: A dictionary has keys that JSON cannot hold or sort.
    """
    return (_SHOWING_ENCODER if recipe.shows_dataclasses else _ENCODER).encode(value)


def check_stable(value: Any, where: str) -> None:
    """Refuse a value whose text could differ between processes; ``where`` is its config path.

    Raises:
        StepConfigError: A function, a set, a placeholder, or an object that only its address, or the generated name of
            a module, describes.
    """
    if value is None or isinstance(value, (str, int, float)):
        return
    if isinstance(value, _PLACEHOLDERS):
        shown = str(value) if isinstance(value, RunValue) else type(value).__name__
        raise StepConfigError(
            f"{where} holds {shown} inside versioned(...), where it is neither resolved nor a dependency: "
            "take it out of versioned(...), which then covers the values beside it."
        )
    if isinstance(value, _FUNCTIONS):
        raise StepConfigError(
            f"{where} is the function {getattr(value, '__qualname__', value)!s}, which has no stable identity: "
            "version a name or a number that identifies it."
        )
    if isinstance(value, (set, frozenset)):
        raise StepConfigError(f"{where} is a set, whose order differs from process to process: use a sorted list.")
    for inner_where, inner in _parts(value, where):
        check_stable(inner, inner_where)


def _parts(value: Any, where: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{where}.{key}", item) for key, item in value.items()]
    if isinstance(value, Enum):
        return [(f"{where}.value", value.value)]
    if isinstance(value, (list, tuple)):
        return [(f"{where}.[{i}]", item) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f"{where}.{spec.name}", getattr(value, spec.name)) for spec in dataclasses.fields(value)]
    describes_itself = isinstance(value, _SELF_DESCRIBING) and not isinstance(value, type)
    text = _text_of(value, where)
    if _GENERATED_NAME.search(text) and not describes_itself:
        raise StepConfigError(
            f"{where} counts as its text {text!r}, whose module has another name in each process that runs this "
            "file: define it in a module that is imported, or version a name that identifies it."
        )
    if _ADDRESS.search(text):
        raise StepConfigError(
            f"{where} is a {type(value).__qualname__}, whose only text is its address in memory: "
            "version what it is made from."
        )
    return []


def _text_of(value: Any, where: str) -> str:
    """Return an object's own text, which is its author's code."""
    try:
        return str(value)
    except Exception as error:
        raise StepConfigError(
            f"{where} is a {type(value).__qualname__}, whose text is unavailable ({type(error).__name__}): version "
            "what it is made from."
        ) from error


def _encode_other(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return _text(value)


def _encode_shown(value: Any) -> Any:
    """The same with the text of an enum or a dataclass instead of its values."""
    if isinstance(value, datetime.timedelta):
        return _encode_other(value)
    is_config = isinstance(value, Enum) or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    return str(value) if is_config else _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, _SELF_DESCRIBING):
        logger.warning("A versioned %s counts as its text %r.", type(value).__qualname__, str(value))
    return str(value)


_ENCODER = json.JSONEncoder(sort_keys=True, default=_encode_other)  # shared: creating it costs as much as using it
_SHOWING_ENCODER = json.JSONEncoder(sort_keys=True, default=_encode_shown)
