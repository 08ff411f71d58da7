"""What the values of a class hold, asked once for each class: configs have millions of values, and few classes."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, Final

PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Classes of values that hold nothing."""


@lru_cache(maxsize=4096)
def field_names(kind: type[Any]) -> tuple[str, ...] | None:
    """The fields of a dataclass, in declared order; None of any other class."""
    is_config = dataclasses.is_dataclass(kind) and not issubclass(kind, type)
    return tuple(spec.name for spec in dataclasses.fields(kind)) if is_config else None
