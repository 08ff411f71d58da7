"""A file that is to be downloaded, and how one knows that a copy of it is right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from tradewind.text import single_line

if TYPE_CHECKING:
    from hashlib import _Hash

_RECORD: Final = ".executor_"
"""How the records of an output begin: a folder that has one counts as the output of another step."""


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
            DamagedDownloadError: They are not. What goes on behind the end of the file is not read.
        """
        digests = self._digests()
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if self.size_bytes is not None and size > self.size_bytes:
                raise DamagedDownloadError(
                    f"{self.url} gave more than the {self.size_bytes:,} bytes that it should have."
                )
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
    if not is_inside or not name.isprintable() or name != "/".join(parts):
        raise UnusableNameError(f"{where} names the file {name[:200]!r}, which is no path below the output.")
    if is_hidden(name):
        raise UnusableNameError(
            f"{where} names the file {name[:200]!r}, which begins with a dot, or is called like a record of a step."
        )
    return name


def is_hidden(name: str) -> bool:
    """Whether a file could be taken for a record of a step: it begins with a dot, or is called like one further in."""
    return name.startswith(".") or any(part.startswith(_RECORD) for part in name.split("/"))


def check_apart(names: Iterable[str], where: str) -> None:
    """Refuse files of which one would lie where another one is, or needs a folder.

    Raises:
        UnusableNameError: Two of the names, which came from ``where``, are so.
    """
    known: set[str] = set()
    for name in names:
        if name in known:
            raise UnusableNameError(f"{where} names the file {name[:200]!r} twice.")
        known.add(name)
    for name in known:
        for folder in PurePosixPath(name).parents:
            if str(folder) in known:
                raise UnusableNameError(f"{where} names {str(folder)[:200]!r} as a file, and {name[:200]!r} within it.")


def parsed_list(chunks: Iterable[bytes], where: str, most_bytes: int) -> list[Any]:
    """The JSON list that a server gives, ``where`` as errors call it.

    Raises:
        DownloadError: It is none, or longer than ``most_bytes``.
    """
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > most_bytes:
            raise DownloadError(f"{where} gives more than {most_bytes:,} bytes.")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DownloadError(f"{where} is no JSON: {single_line(error)}.") from error
    if not isinstance(found, list):
        raise DownloadError(f"{where} is no list but a {type(found).__name__}.")
    return found
