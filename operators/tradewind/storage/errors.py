"""What can be wrong with a path, or with what is stored there."""

from __future__ import annotations


class StorageError(Exception):
    """Base of all errors of paths, of stores and of the records on them."""


class UnusablePathError(StorageError, ValueError):
    """The path is none that Tradewind opens. It was not opened."""


class OutsideRootsError(UnusablePathError):
    """The path lies below none of the folders and buckets that may be read and written for whoever gave it."""


class UnsupportedStoreError(StorageError):
    """The store cannot write on a condition, so nothing on it can be done exactly once."""
