"""Files to download, and the checks of their names, bytes and lists."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tradewind.text import single_line

if TYPE_CHECKING:
    from hashlib import _Hash

_TURNING: Final = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""Unicode's marks that show the letters after them in another order."""
_MARKS: Final = "\u061c\u200e\u200f"
"""Marks of the direction alone."""
_RECORD: Final = ".executor_"
"""Prefix of record names: a folder with such a file counts as the output of another step."""
_MAX_DAMAGED_TRIES: Final = 3

_T = TypeVar("_T")


class DownloadError(RuntimeError):
    """A file, or the list of files, is not available."""


class DamagedDownloadError(DownloadError):
    """The server sent other bytes than it announced."""


class UnusableNameError(DownloadError, ValueError):
    """A copy would be outside the output, or among the records of its step."""


@dataclass(frozen=True)
class SourceFile:
    """One file to download.

    Attributes:
        name: Path of the copy, below the output.
        url: ``https``, ``http``, or that of a store.
        size_bytes: None if unknown beforehand.
        sha256: In hexadecimal; None if unknown.
        git_blob: Git's name of these bytes (SHA-1 over a head and the bytes); None if unknown.
    """

    name: str
    url: str
    size_bytes: int | None = None
    sha256: str | None = None
    git_blob: str | None = None

    @property
    def is_checked(self) -> bool:
        """Whether a checksum verifies the copy."""
        return self.sha256 is not None or self._has_git_blob

    def verify(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks, the last one of a known size only if together they are the file.

        Raises:
            DamagedDownloadError: They are not. Bytes after the end of the file are not read.
        """
        digests = self._digests()
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if self.size_bytes is not None and size > self.size_bytes:
                raise DamagedDownloadError(
                    f"{self.url} gave more than the {self.size_bytes:,} bytes that it should give."
                )
            for digest, _ in digests:
                digest.update(chunk)
            if size == self.size_bytes:
                self._compare(digests)
            yield chunk
        if self.size_bytes is not None and size != self.size_bytes:
            raise DamagedDownloadError(f"{self.url} gave {size:,} bytes, and should give {self.size_bytes:,}.")
        self._compare(digests)

    def _compare(self, digests: Iterable[tuple[_Hash, str]]) -> None:
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


def repeat_if_damaged(read: Callable[[], _T]) -> _T:
    """Call ``read``, at most three times, until it raises no ``DamagedDownloadError``."""
    for _ in range(_MAX_DAMAGED_TRIES - 1):
        try:
            return read()
        except DamagedDownloadError as error:
            print(f"{error} Reading it again.", flush=True)
    return read()


def check_name(name: str, where: str) -> str:
    """Return ``name``, which ``where`` gave, if it stays below the folder it is joined to.

    Raises:
        UnusableNameError: It does not, or is no name.
    """
    parts = PurePosixPath(name).parts
    is_inside = bool(parts) and not name.startswith("/") and ".." not in parts and "\\" not in name
    if not is_inside or not all(map(_is_plain, name)) or name != "/".join(parts):
        raise UnusableNameError(f"{where} names the file {name[:200]!r}, which is no path below the output.")
    if is_hidden(name):
        raise UnusableNameError(
            f"{where} names the file {name[:200]!r}, which begins with a dot, or is called like a record of a step."
        )
    return name


def _is_plain(letter: str) -> bool:
    """Whether a letter ends no line, controls no terminal and turns no text around; any kind of space is one."""
    category, direction = unicodedata.category(letter), unicodedata.bidirectional(letter)
    return category not in ("Cc", "Cs", "Zl", "Zp") and direction not in _TURNING and letter not in _MARKS


def is_hidden(name: str) -> bool:
    """Whether a file could pass for a record of a step: a leading dot, or a record's name in a subfolder."""
    return name.startswith(".") or any(part.startswith(_RECORD) for part in name.split("/"))


def check_apart(names: Iterable[str], where: str) -> None:
    """Check that no two names, which ``where`` gave, need the same path.

    Raises:
        UnusableNameError: A name occurs twice, or is a folder of another one.
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


def parse_json(chunks: Iterable[bytes], where: str, max_bytes: int) -> Any:
    """Parse the JSON of a server, which errors call ``where``.

    Raises:
        DownloadError: It is no JSON, or longer than ``max_bytes``.
    """
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > max_bytes:
            raise DownloadError(f"{where} gives more than {max_bytes:,} bytes.")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DownloadError(f"{where} is no JSON: {single_line(error)}.") from error


def parse_json_list(chunks: Iterable[bytes], where: str, max_bytes: int) -> list[Any]:
    """Parse the JSON list of a server, which errors call ``where``.

    Raises:
        DownloadError: It is no list, or longer than ``max_bytes``.
    """
    entries = parse_json(chunks, where, max_bytes)
    if not isinstance(entries, list):
        raise DownloadError(f"{where} is no list but a {type(entries).__name__}.")
    return entries
