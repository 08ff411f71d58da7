"""JSON form of values, to compare those of two processes."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
import types
from typing import Any


def shown(value: Any) -> Any:
    """Return ``value`` with the names of its classes and of each dataclass's fields.

    For a function named ``made``, return the form of its result.
    """
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {spec.name: shown(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
        return {"class": f"{type(value).__module__}.{type(value).__qualname__}", "fields": fields}
    if isinstance(value, dict):
        return {str(key): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if isinstance(value, datetime.timedelta | pathlib.PurePath):
        return str(value)
    if isinstance(value, types.FunctionType) and value.__name__ == "made":
        return shown(value())
    return getattr(value, "__name__", f"a {type(value).__qualname__}")
