"""The tables of the corpus' era, as the import map takes them."""

from __future__ import annotations

import types
from collections.abc import Mapping

from tradewind.marin.era import modules
from tradewind.marin.era.building import builder
from tradewind.marin.world.standins import Opaque, Origin


def era_modules() -> Mapping[str, types.ModuleType]:
    """Name -> module whose attributes are what the tables know; to read any other raises ``AttributeError``."""
    builder().on_cluster = _on_cluster
    return modules()


def _on_cluster(module: str, name: str) -> Opaque:
    return Opaque(Origin(f"{module}.{name}", module, name))
