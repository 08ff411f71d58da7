"""Conditional reads and writes of one small object; ``conditional`` picks the store for a path.

A store keeps two promises. Of several writers that read the same tag, exactly one succeeds. The age of an object is
measured by the clock that also stamps its writes, so that a machine with a wrong clock misjudges no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tradewind.storage.errors import StoreError

REQUEST_TIMEOUT_S = 20.0
"""Timeout of one call to a store, retries included."""


class StoreRefusedError(StoreError):
    """The store refused access, or the bucket does not exist; an immediate retry does not help."""


@dataclass(frozen=True)
class StoredObject:
    """An object as it was read.

    Attributes:
        text: Its whole content.
        tag: The tag that a later write must match to replace exactly this object.
        age_s: Its age by the store's own clock.
        flaw: Why it cannot be a record, if so. Then no write replaces it, whatever its tag.
    """

    text: str
    tag: str
    age_s: float
    flaw: str | None = None


class ConditionalStore(Protocol):
    """One kind of store. Every failure to answer is a ``StoreUnavailableError``."""

    def read(self, path: str) -> StoredObject | None:
        """Return the object, or None if it does not exist."""

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        """Replace the object with the tag ``expected`` (None: create it); return None if it has another tag."""

    def remove(self, path: str, expected: str) -> None:
        """Remove the object with the tag ``expected``; another one stays."""
