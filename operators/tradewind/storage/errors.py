"""Errors of paths, of stores and of stored records."""

from __future__ import annotations


class StorageError(Exception):
    """Base of all errors of paths, of stores and of the records on them."""


class UnusablePathError(StorageError, ValueError):
    """Tradewind does not open this path. It was not opened."""


class OutsideRootsError(UnusablePathError):
    """The path is outside the folders and buckets that its source may read and write."""


class UnsupportedStoreError(StorageError):
    """The store has no conditional writes, so nothing on it can happen exactly once."""


class RecordsError(StorageError):
    """Base of all errors of a store, and of the records in it."""


class StoreError(RecordsError):
    """The store did not execute a request. It may later: even a refusal can end, as that of an old token."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or is unavailable. Its content is unknown; retry."""


class BadRecordError(RecordsError):
    """A file that should be a record cannot be read as one. It stays unchanged, and its content is ignored.

    Attributes:
        file: Its path.
        flaw: Why, in words that follow "because".
    """

    def __init__(self, file: str, flaw: str, advice: str = "Put back what was there, or remove it.") -> None:
        super().__init__(f"{file} cannot be read, because {flaw}. {advice}")
        self.file = file
        self.flaw = flaw


class RecordTooLargeError(RecordsError):
    """A record to be written is larger than readers accept."""


class LeaseLostError(RecordsError):
    """Another owner holds the lease: a write of this process would not count."""
