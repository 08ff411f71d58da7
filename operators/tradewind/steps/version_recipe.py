"""Recipes of the text that a version is the hash of. They differ only where Marin's executor changed its mind."""

from __future__ import annotations

from enum import Enum


class Recipe(Enum):
    """Whose text a step's version is."""

    JUNE_2026 = "june-2026"
    """The one that this project writes: nested dataclasses and enums by their values, sequences of every kind walked,
    dependencies below the fourth level by name and hash."""
    NOVEMBER_2025 = "november-2025"
    """Marin's last under Ray, for experiments of that time: a dataclass or an enum inside ``versioned(...)`` counts as
    the text that Python shows of it, tuples and sets are not looked into, and dependencies appear whole."""

    @property
    def shows_dataclasses(self) -> bool:
        """A dataclass or an enum inside ``versioned(...)`` counts as its text, not as its values."""
        return self is Recipe.NOVEMBER_2025

    @property
    def walks_tuples(self) -> bool:
        """References and versioned values inside tuples and sets count."""
        return self is Recipe.JUNE_2026

    @property
    def deepest_nested(self) -> int | None:
        """Up to which depth a dependency appears whole; None: always."""
        return 4 if self is Recipe.JUNE_2026 else None
