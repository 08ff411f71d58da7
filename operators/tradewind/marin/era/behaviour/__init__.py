"""What classes of the era do while steps are built, written anew: checks, sizes, costs, small conversions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.marin.era.behaviour import extraction, flops, models, tokenizers, training, values

METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    **models.METHODS, **training.METHODS, **values.METHODS, **extraction.METHODS,
}  # fmt: skip
"""Dotted name of a class -> what it has besides its fields."""
NAMES: Final[Mapping[str, Any]] = {
    **flops.NAMES, **tokenizers.NAMES, **training.NAMES, **values.NAMES,
}  # fmt: skip
"""Dotted name -> a function or class that no table row makes."""

__all__ = ["METHODS", "NAMES"]
