"""Compare-and-swap of one small object on any store that can do it: what was read is replaced, or nothing is.

An answer that got lost after the write was done is no loss: a refused write is read back, and what carries our own text
is ours. So texts must be unique, as those of leases are. A store without conditional writes is refused.
"""

from __future__ import annotations

from tradewind.storage import Location
from tradewind.storage.backends import ConditionalStore, StoredObject

__all__ = ["StoredObject", "read_stored", "remove_if", "write_if"]


def read_stored(path: str) -> StoredObject | None:
    """The object at ``path`` with its tag and age, or None when there is none."""
    return _store_of(path).read(path)


def write_if(path: str, text: str, expected: str | None) -> StoredObject | None:
    """Put ``text`` at ``path`` if the object there has the tag ``expected``, or if there is none and that is None.

    Returns:
        What is there now, or None when something else was there and stays.
    """
    store = _store_of(path)
    written = store.write(path, text, expected)
    if written is not None:
        return written
    there = store.read(path)
    return there if there is not None and there.text == text else None


def remove_if(path: str, expected: str) -> None:
    """Remove the object at ``path`` if it still has the tag ``expected``."""
    _store_of(path).remove(path, expected)


def _store_of(path: str) -> ConditionalStore:
    match Location.of(path).scheme:
        case "file":
            from tradewind.storage.local import LocalStore

            return LocalStore()
        case "gs":
            from tradewind.storage.gcs import GcsStore

            return GcsStore()
        case "s3":
            from tradewind.storage.s3 import S3Store

            return S3Store()
        case _:
            from tradewind.storage.local import MemoryStore

            return MemoryStore()
