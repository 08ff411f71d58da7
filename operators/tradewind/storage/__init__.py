"""The one gate to every path: what a path may be, and the file system that it lies in.

Nothing else in the project turns a path into a file system. fsspec would understand more than is meant: ``a::b`` chains
file systems, of which one renders templates and so runs code, others ask any server of the network or unpack archives.
"""

from tradewind.storage.errors import OutsideRootsError, StorageError, UnsupportedStoreError, UnusablePathError
from tradewind.storage.gate import file_system_at, open_file
from tradewind.storage.locations import Location, named_path, problem_of_text
from tradewind.storage.roots import NO_ROOTS, Place, Roots, place_of

__all__ = [
    "NO_ROOTS",
    "Location",
    "OutsideRootsError",
    "Place",
    "Roots",
    "StorageError",
    "UnsupportedStoreError",
    "UnusablePathError",
    "file_system_at",
    "named_path",
    "open_file",
    "place_of",
    "problem_of_text",
]
