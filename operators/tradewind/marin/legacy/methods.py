"""What classes of the era do while steps are built, written anew: checks, sizes, costs, small conversions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.marin.legacy import flops, model_methods, tokenizers, training_methods, value_methods

METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    **model_methods.METHODS, **training_methods.METHODS, **value_methods.METHODS, **value_methods.EXTRACTION_METHODS,
}  # fmt: skip
"""Dotted name of a class -> what it has besides its fields."""
NAMES: Final[Mapping[str, Any]] = {
    **flops.NAMES, **tokenizers.NAMES, **training_methods.NAMES, **value_methods.NAMES,
}  # fmt: skip
"""Dotted name -> a function or class that no table row makes."""

__all__ = ["METHODS", "NAMES"]
