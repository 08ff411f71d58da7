"""Classes of the legacy API: the values of Marin's configs without JAX, Levanter or Ray."""

from __future__ import annotations

from tradewind.marin.legacy.modules import modules

__all__ = ["modules"]
