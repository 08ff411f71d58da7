"""What can go wrong between us and a store."""

from __future__ import annotations

from tradewind.storage import StorageError


class RecordsError(StorageError):
    """Base of all errors of this layer."""


class StoreError(RecordsError):
    """The store did not do what was asked of it. It may later: even a refusal passes, such as that of an old token."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or answered that it cannot now. Nothing is known of what it holds; ask again."""


class LeaseLostError(RecordsError):
    """Somebody else holds the lease: what this process was about to write would not count."""
