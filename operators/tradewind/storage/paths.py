"""Validate paths: a local path, or a URL of a known store. Validation opens nothing.

The roots are the folders and buckets below which a path from outside must be. Such a path comes from a record, an XCom
or a request, whose writer may have fewer rights than this process. So it is accepted only if it leads below a root,
after ``..`` is resolved and the links of local disks are followed.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tradewind.storage.errors import OutsideRootsError, StorageError, UnsupportedStoreError, UnusablePathError

_SCHEMES: Final = {
    "file": "file",
    "local": "file",
    "gs": "gs",
    "gcs": "gs",
    "s3": "s3",
    "s3a": "s3",
    "memory": "memory",
}
_BUCKETS: Final = frozenset({"gs", "s3"})
_BUCKET: Final = re.compile(r"[A-Za-z0-9][\w.:-]*", re.ASCII)
"""It begins with a letter or a digit: ``gs://`` followed by a record's name is not a bucket."""
_MAX_PATH_BYTES: Final = 4096
"""Linux's PATH_MAX; the stores accept 1,024 bytes for a name."""
_MAX_NAME_BYTES: Final = 1024
_MAX_PART_BYTES: Final = 255
"""Limit of most file systems for a part of a local path."""
_MAX_SHOWN_CHARS: Final = 80


@dataclass(frozen=True)
class Location:
    """A path that may be opened.

    Attributes:
        scheme: ``file``, ``gs``, ``s3`` or ``memory``, in any spelling.
        bucket: The bucket of ``gs`` and ``s3``; else empty.
        name: The name in the bucket or on the disk, as given.
    """

    scheme: str
    bucket: str
    name: str

    @staticmethod
    def of(path: Any, where: str = "") -> Location:
        """Parse ``path``.

        Args:
            where: Its source for the error, such as the field of a step.

        Raises:
            UnusablePathError: It is not a path, or means more than a location.
            UnsupportedStoreError: It is of another store.
        """
        if not isinstance(path, str):
            subject = f"{where}: a path" if where else "A path"
            raise UnusablePathError(f"{subject} should be text, not {type(path).__name__}.")
        if problem := problem_of_text(path):
            raise UnusablePathError(f"{named_path(path, where)} {problem}.")
        given, has_scheme, rest = path.partition("://")
        if not has_scheme:
            return _checked(path, Location("file", "", path), where)
        scheme = _SCHEMES.get(given)
        if scheme is None:
            raise UnsupportedStoreError(
                f"{named_path(path, where)} is not of a store with conditional writes, without which a step could run "
                "twice: use a local or shared folder, gs:// or s3://."
            )
        bucket, _, name = rest.partition("/") if scheme in _BUCKETS else ("", "", rest)
        return _checked(path, Location(scheme, bucket, name), where)

    @property
    def is_absolute(self) -> bool:
        """Whether the path has the same meaning in every process."""
        return self.scheme != "file" or self.name.startswith("/")


def named_path(path: str, where: str = "") -> str:
    """Begin a sentence about ``path`` from ``where``: shortened, without passwords."""
    return f"{where}: the path {_shown(path)}" if where else f"The path {_shown(path)}"


def problem_of_text(path: str) -> str:
    """Describe what is wrong with the text of ``path``, wherever it leads; empty if nothing is."""
    if not path:
        return "is empty"
    if "\0" in path:
        return "holds a NUL"
    if "::" in path:
        return "holds '::', which would chain file systems"
    if path.startswith("data:"):
        return "holds data itself instead of its location"
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "holds half of a character (a lone surrogate)"
    return f"has {size:,} bytes, more than the {_MAX_PATH_BYTES:,} of any store" if size > _MAX_PATH_BYTES else ""


def _checked(path: str, location: Location, where: str) -> Location:
    if problem := _problem_of_location(location):
        raise UnusablePathError(f"{named_path(path, where)} {problem}.")
    return location


def _problem_of_location(location: Location) -> str:
    if location.scheme not in _BUCKETS:
        scheme, is_short, _ = location.name.partition(":")
        if location.scheme == "file" and is_short and scheme in _SCHEMES:
            return f"is neither a local path nor a URL: write {scheme}:// before a store's name"
        size = max(len(part.encode()) for part in location.name.split("/"))
        return f"has a part of {size} bytes, more than a disk's {_MAX_PART_BYTES}" if size > _MAX_PART_BYTES else ""
    if not location.bucket:
        return "names no bucket"
    if not {".", ".."}.isdisjoint(location.name.split("/")):
        return "has '.' or '..' as a part, which means nothing in a bucket"
    if "@" in location.bucket:
        return "holds a user's name or a password, which no path may contain"
    if not _BUCKET.fullmatch(location.bucket):
        return "names no bucket that a store could have"
    size = len(location.name.encode())
    return f"has a name of {size:,} bytes, more than a store's {_MAX_NAME_BYTES:,}" if size > _MAX_NAME_BYTES else ""


def _shown(path: str) -> str:
    """Shorten the path, and omit what could be a password."""
    scheme, has_scheme, rest = path.partition("://")
    user, is_user, host = rest.partition("/")[0].rpartition("@")
    if has_scheme and is_user:
        path = f"{scheme}://***@{rest[len(user) + 1 :]}"
    if scheme.lower() in ("http", "https") and "?" in path:  # of a signed address
        path = f"{path.partition('?')[0]}?***"
    return repr(path if len(path) <= _MAX_SHOWN_CHARS else path[:_MAX_SHOWN_CHARS] + "…")


@dataclass(frozen=True)
class Roots:
    """Folders and buckets, as given."""

    paths: tuple[str, ...] = ()

    @staticmethod
    def of(paths: Iterable[Any], where: str = "") -> Roots:
        """Parse the roots ``paths``, which ``where`` gave.

        Raises:
            UnusablePathError: One of them is not a path, or is relative.
            UnsupportedStoreError: One of them is of another store.
        """
        found = tuple(dict.fromkeys(paths))
        for path in found:
            if not Location.of(path, where).is_absolute:
                raise OutsideRootsError(
                    f"{named_path(path, where)} is relative, so its meaning depends on a process's working folder: "
                    "give an absolute path or a URL."
                )
        return Roots(found)

    def also(self, paths: Iterable[str]) -> Roots:
        """Return these roots and ``paths``."""
        return Roots(tuple(dict.fromkeys((*self.paths, *paths))))

    def allow(self, path: Any) -> bool:
        """Whether ``path`` is a root or below one; False for invalid paths."""
        try:
            return self._hold(resolve_location(path))
        except StorageError:
            return False

    def allow_resolved(self, name: str) -> bool:
        """Whether a local path that is absolute and without links, as of an opened file, is a root or below one."""
        return self._hold(ResolvedLocation("file", name))

    def _hold(self, location: ResolvedLocation) -> bool:
        return any(location.is_or_is_below(root) for root in self._resolved)

    @cached_property
    def _resolved(self) -> tuple[ResolvedLocation, ...]:
        return tuple(map(resolve_location, self.paths))

    def check(self, path: Any, where: str) -> None:
        """Refuse a path that is neither a root nor below one.

        Raises:
            OutsideRootsError: It is elsewhere.
            UnusablePathError: It is not a path that may be opened.
            UnsupportedStoreError: It is of another store.
        """
        Location.of(path, where)
        if not self.allow(path):
            known = ", ".join(self.paths) or "there is none"
            raise OutsideRootsError(
                f"{named_path(path, where)} is below no allowed root ({known}): give a path below one of them, or "
                "have an administrator add its folder or bucket to allowed_roots in the [tradewind] section of "
                "airflow.cfg."
            )


NO_ROOTS: Final = Roots()


@dataclass(frozen=True)
class ResolvedLocation:
    """The target of a path: equal for all its spellings."""

    store: str
    name: str

    def is_or_is_below(self, other: ResolvedLocation) -> bool:
        """Whether this is ``other`` or below it."""
        return self.store == other.store and (self.name == other.name or self.is_below(other))

    def is_below(self, other: ResolvedLocation) -> bool:
        """Whether this is below ``other``, and not the same."""
        folder = other.name if other.name.endswith("/") else f"{other.name}/"
        return self.store == other.store and self.name != other.name and self.name.startswith(folder)

    def folders(self) -> Iterator[ResolvedLocation]:
        """The parents of this, the nearest first."""
        name = self.name
        while name != "/":
            name = posixpath.dirname(name)
            yield ResolvedLocation(self.store, name)


def resolve_location(path: Any, *, follows_links: bool = True) -> ResolvedLocation:
    """Return where ``path`` leads.

    Args:
        follows_links: Follow the links of a local disk; otherwise use the text alone.

    Raises:
        UnusablePathError: It is not a path that may be opened.
        UnsupportedStoreError: It is of another store.
    """
    location = Location.of(path)
    if location.scheme == "file":
        name = os.path.expanduser(location.name or "/")
        found = os.path.realpath(name) if follows_links else os.path.abspath(name)
        return ResolvedLocation("file", f"/{found.lstrip('/')}")  # POSIX keeps two leading slashes
    return ResolvedLocation(
        f"{location.scheme}://{location.bucket}", posixpath.normpath(f"/{location.name.lstrip('/')}")
    )
