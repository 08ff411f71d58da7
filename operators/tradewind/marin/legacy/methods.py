"""Methods of legacy classes used while steps are built, rewritten: checks, sizes, costs, conversions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.marin.legacy import flops, model_methods, tokenizers, training_methods, value_methods

METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    **model_methods.METHODS, **training_methods.METHODS, **value_methods.METHODS, **value_methods.EXTRACTION_METHODS,
}  # fmt: skip
"""Dotted name of a class -> its attributes besides its fields."""
NAMES: Final[Mapping[str, Any]] = {
    **flops.NAMES, **tokenizers.NAMES, **training_methods.NAMES, **value_methods.NAMES,
}  # fmt: skip
"""Dotted name -> a function or class without a table row."""

__all__ = ["METHODS", "NAMES"]
