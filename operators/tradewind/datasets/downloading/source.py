"""A file that is to be downloaded, and how one knows that a copy of it is right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


class DownloadError(RuntimeError):
    """A file, or the list of files, could not be had."""


class DamagedDownloadError(DownloadError):
    """What came is not what was announced."""


class UnusableNameError(DownloadError, ValueError):
    """A copy would lie outside the output, or among the records of its step."""


@dataclass(frozen=True)
class SourceFile:
    """One file to download.

    Attributes:
        name: Of the copy, below the output.
        url: ``https``, ``http``, or that of a store.
        size_bytes: None if it is not known beforehand.
        sha256: In hexadecimal; None if it is not known.
        git_blob: The name that Git gives to these bytes (SHA-1 over a head and the bytes); None if it is not known.
    """

    name: str
    url: str
    size_bytes: int | None = None
    sha256: str | None = None
    git_blob: str | None = None

    @property
    def is_checked(self) -> bool:
        """Whether a wrong copy would be noticed."""
        return self.sha256 is not None or self._has_git_blob

    def checked(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same chunks; the end comes only if all of them together are the file.

        Raises:
            DamagedDownloadError: They are not.
        """
        digests = self._digests()
        size = 0
        for chunk in chunks:
            size += len(chunk)
            for digest, _ in digests:
                digest.update(chunk)
            yield chunk
        if self.size_bytes is not None and size != self.size_bytes:
            raise DamagedDownloadError(f"{self.url} gave {size:,} bytes, and should have {self.size_bytes:,}.")
        for digest, wanted in digests:
            if digest.hexdigest() != wanted:
                raise DamagedDownloadError(
                    f"{self.url} gave bytes with the {digest.name} {digest.hexdigest()}, and should give {wanted}."
                )

    def _digests(self) -> list[tuple[_Hash, str]]:
        digests = []
        if self.sha256 is not None:
            digests.append((hashlib.sha256(), self.sha256.lower()))
        if self._has_git_blob and self.git_blob is not None:
            head = f"blob {self.size_bytes}\0".encode()
            digests.append((hashlib.sha1(head, usedforsecurity=False), self.git_blob.lower()))
        return digests

    @property
    def _has_git_blob(self) -> bool:
        return self.git_blob is not None and self.size_bytes is not None and self.sha256 is None


def check_name(name: str, where: str) -> str:
    """``name`` if it stays below the folder that it is joined to; it came from ``where``.

    Raises:
        UnusableNameError: It does not, or is none.
    """
    parts = PurePosixPath(name).parts
    is_inside = bool(parts) and not name.startswith("/") and ".." not in parts and "\\" not in name
    if not is_inside or not name.isprintable() or name != "/".join(parts) or parts[0].startswith("."):
        is_hidden = is_inside and parts[0].startswith(".")
        why = "begins with a dot, as the records of a step do" if is_hidden else "is no path below the output"
        raise UnusableNameError(f"{where} names the file {name[:200]!r}, which {why}.")
    return name
