"""Classes of the time that Marin's experiments are of: the values of their configs without JAX, Levanter or Ray."""

from __future__ import annotations

from tradewind.marin.legacy.modules import modules

__all__ = ["modules"]
