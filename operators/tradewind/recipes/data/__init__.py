"""Recipes for data: steps that make, filter and convert sets of documents."""

from __future__ import annotations

from tradewind.recipes.data.consolidated import FilterConfig, consolidate
from tradewind.recipes.data.dolma import from_dolma, to_dolma
from tradewind.recipes.data.duplicates import deduplicate_exact
from tradewind.recipes.data.normalized import normalize

__all__ = ["FilterConfig", "consolidate", "deduplicate_exact", "from_dolma", "normalize", "to_dolma"]
