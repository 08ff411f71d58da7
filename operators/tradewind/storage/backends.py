"""Conditional reads and writes of one small object, store by store; ``conditional`` picks the store for a path.

A store keeps two promises: of many writers that saw the same tag exactly one is let through, and the age of an object
is told by the clock that also stamps its writes, so that a machine whose clock is wrong judges no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tradewind.storage.errors import StoreError

REQUEST_TIMEOUT_S = 20.0
"""How long one call tries to reach a store, retries included."""


class StoreRefusedError(StoreError):
    """The store answered that we may not, or that there is no such bucket; asking again at once does not help."""


@dataclass(frozen=True)
class StoredObject:
    """An object as it was read.

    Attributes:
        text: All of it.
        tag: What a later write must find there to replace just this.
        age_s: How long ago it was written, by the store's own clock.
        flaw: Why it is no text of a record, if it is none. Nothing replaces it then, whatever its tag.
    """

    text: str
    tag: str
    age_s: float
    flaw: str | None = None


class ConditionalStore(Protocol):
    """One kind of store. Whatever keeps it from answering is a ``StoreUnavailableError``."""

    def read(self, path: str) -> StoredObject | None:
        """The object, or None when there is none."""

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        """Replace the object with the tag ``expected`` (None: create it), or return None when that is not there."""

    def remove(self, path: str, expected: str) -> None:
        """Remove the object with the tag ``expected``; another one stays."""
