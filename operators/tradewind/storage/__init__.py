"""Access to paths: validate a path and find its file system.

No other package turns a path into a file system. fsspec accepts more than intended: ``a::b`` chains file systems. One
of those renders templates and so runs code; others query any server of the network or unpack archives.
"""

from tradewind.storage.errors import OutsideRootsError, StorageError, UnsupportedStoreError, UnusablePathError
from tradewind.storage.filesystems import file_system_at, open_file
from tradewind.storage.paths import (
    NO_ROOTS,
    Location,
    ResolvedLocation,
    Roots,
    named_path,
    problem_of_text,
    resolve_location,
)

__all__ = [
    "NO_ROOTS",
    "Location",
    "OutsideRootsError",
    "ResolvedLocation",
    "Roots",
    "StorageError",
    "UnsupportedStoreError",
    "UnusablePathError",
    "file_system_at",
    "named_path",
    "open_file",
    "resolve_location",
    "problem_of_text",
]
