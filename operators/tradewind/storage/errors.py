"""What can be wrong with a path, with a store, or with what is stored there."""

from __future__ import annotations


class StorageError(Exception):
    """Base of all errors of paths, of stores and of the records on them."""


class UnusablePathError(StorageError, ValueError):
    """The path is none that Tradewind opens. It was not opened."""


class OutsideRootsError(UnusablePathError):
    """The path lies below none of the folders and buckets that may be read and written for whoever gave it."""


class UnsupportedStoreError(StorageError):
    """The store cannot write on a condition, so nothing on it can be done exactly once."""


class RecordsError(StorageError):
    """Base of all errors of a store, and of the records in it."""


class StoreError(RecordsError):
    """The store did not do what was asked of it. It may later: even a refusal passes, such as that of an old token."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or answered that it cannot now. Nothing is known of what it holds; ask again."""


class BadRecordError(RecordsError):
    """A file that should be a record cannot be read as one. It is left as it is, and what it may say is not used.

    Attributes:
        file: Its path.
        flaw: Why, in words that follow "because".
    """

    def __init__(self, file: str, flaw: str, advice: str = "Put back what was there, or remove it.") -> None:
        super().__init__(f"{file} cannot be read, because {flaw}. {advice}")
        self.file = file
        self.flaw = flaw


class RecordTooLargeError(RecordsError):
    """What was to be written down is more than anybody would read back."""


class LeaseLostError(RecordsError):
    """Somebody else holds the lease: what this process was about to write would not count."""
