"""The roots: the folders and buckets below which a path from outside may lie. Looking at them opens nothing.

What comes from a record, an XCom or a request was perhaps written by somebody who may write less than we may. So it
counts only where it leads below a root, once ``..`` is worked out and the links of local disks are followed.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tradewind.storage.errors import OutsideRootsError, StorageError
from tradewind.storage.locations import Location, named_path


@dataclass(frozen=True)
class Roots:
    """Folders and buckets, as they were given."""

    paths: tuple[str, ...] = ()

    @staticmethod
    def of(paths: Iterable[Any], where: str = "") -> Roots:
        """The roots ``paths``, which ``where`` gave.

        Raises:
            UnusablePathError: One of them is no path, or means another folder in each process.
            UnsupportedStoreError: One of them is of another store.
        """
        found = tuple(dict.fromkeys(paths))
        for path in found:
            if not Location.of(path, where).is_absolute:
                raise OutsideRootsError(
                    f"{named_path(path, where)} is relative, so each process would look it up from where it is: give "
                    "an absolute path or a URL."
                )
        return Roots(found)

    def also(self, paths: Iterable[str]) -> Roots:
        """These roots and ``paths``."""
        return Roots(tuple(dict.fromkeys((*self.paths, *paths))))

    def allow(self, path: Any) -> bool:
        """Whether ``path`` is, or lies below, a root; False also where it is no path."""
        try:
            place = place_of(path)
        except StorageError:
            return False
        return any(place.is_or_is_below(root) for root in self._places)

    @cached_property
    def _places(self) -> tuple[Place, ...]:
        return tuple(map(place_of, self.paths))

    def check(self, path: Any, where: str) -> None:
        """Refuse a path that is no root and lies below none.

        Raises:
            OutsideRootsError: It lies elsewhere.
            UnusablePathError: It is none that may be opened.
            UnsupportedStoreError: It is of another store.
        """
        Location.of(path, where)
        if not self.allow(path):
            known = ", ".join(self.paths) or "there is none"
            raise OutsideRootsError(
                f"{named_path(path, where)} lies below no allowed root ({known}): give a path below one of them, or "
                "have an administrator add its folder or bucket to allowed_roots in the [tradewind] section of "
                "airflow.cfg."
            )


NO_ROOTS: Final = Roots()


@dataclass(frozen=True)
class Place:
    """Where a path leads: the same for every spelling of it."""

    store: str
    name: str

    def is_or_is_below(self, other: Place) -> bool:
        """Whether this is ``other`` or lies below it."""
        return self.store == other.store and (self.name == other.name or self.is_below(other))

    def is_below(self, other: Place) -> bool:
        """Whether this lies below ``other``, and is not the same."""
        folder = other.name if other.name.endswith("/") else f"{other.name}/"
        return self.store == other.store and self.name != other.name and self.name.startswith(folder)

    def folders(self) -> Iterator[Place]:
        """What this lies below, from the nearest."""
        name = self.name
        while name != "/":
            name = posixpath.dirname(name)
            yield Place(self.store, name)


def place_of(path: Any, *, follows_links: bool = True) -> Place:
    """Where ``path`` leads.

    Args:
        follows_links: Also through the links of a local disk; otherwise by its text alone.

    Raises:
        UnusablePathError: It is none that may be opened.
        UnsupportedStoreError: It is of another store.
    """
    location = Location.of(path)
    if location.scheme == "file":
        name = os.path.expanduser(location.name or "/")
        found = os.path.realpath(name) if follows_links else os.path.abspath(name)
        return Place("file", f"/{found.lstrip('/')}")  # POSIX leaves two slashes at the beginning as they are
    return Place(f"{location.scheme}://{location.bucket}", posixpath.normpath(f"/{location.name.lstrip('/')}"))
