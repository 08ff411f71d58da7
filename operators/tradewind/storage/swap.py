"""Compare-and-swap of one small object: a write replaces what was read, or nothing.

A lost response after a completed write does no harm. A refused write is read back, and an object with the writer's own
text is the writer's. So texts must be unique, as those of leases are. A store without conditional writes is refused.
"""

from __future__ import annotations

from tradewind.storage import Location
from tradewind.storage.backends import ConditionalStore, StoredObject

__all__ = ["StoredObject", "read_stored", "remove_if", "write_if"]


def read_stored(path: str) -> StoredObject | None:
    """Return the object at ``path`` with its tag and age, or None if it does not exist."""
    return _store_of(path).read(path)


def write_if(path: str, text: str, expected: str | None) -> StoredObject | None:
    """Write ``text`` to ``path`` if the object there has the tag ``expected``; None means no object.

    Returns:
        The object now there, or None if another one was there and stays.
    """
    store = _store_of(path)
    written = store.write(path, text, expected)
    if written is not None:
        return written
    existing = store.read(path)
    return existing if existing is not None and existing.text == text else None


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
