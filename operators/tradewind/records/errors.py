"""What can go wrong between us and a store."""

from __future__ import annotations

from tradewind.storage import StorageError


class RecordsError(StorageError):
    """Base of all errors of this layer."""


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
