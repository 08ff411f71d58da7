"""Files to tokenize, in their order, with the state of each, from listings alone."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape, has_magic
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tradewind.datasets.files import hidden_parts, is_remote, parent, state_of, store_fingerprint
from tradewind.datasets.source_files import SourceFile
from tradewind.datasets.token_rows import TokenizingError
from tradewind.storage import file_system_at
from tradewind.text import truncated_repr

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

ENDINGS: Final = tuple(
    f".{kind}{packed}" for kind in ("jsonl", "json") for packed in ("", ".gz", ".zst", ".zstd")
) + (".parquet",)  # fmt: skip
IGNORED_FILES: Final = frozenset({"provenance.json", "stats.json"})
"""Files about the others, which downloads and recipes for data add."""
_MAX_SINGLE_LOOKUPS: Final = 4
"""Up to so many files of one folder are looked up one by one, and more in one listing."""
_TEST_DATA: Final = re.compile(r"[^a-zA-Z]test[^a-zA-Z]|validation")

_T = TypeVar("_T")


@dataclass(frozen=True)
class InputFile:
    """One file of texts.

    Attributes:
        path: With the protocol of its store.
        size_bytes: Size in the store, compressed or not.
        state: Usually changes with each write.
        source: The file of a hub's repository that is read for it; None for a file of a store.
    """

    path: str
    size_bytes: int
    state: str
    source: SourceFile | None = None


def input_files(paths: Sequence[str | PurePath], field: str, endings: tuple[str, ...] = ENDINGS) -> list[InputFile]:
    """List the files of ``paths``: files, folders (all files below, sorted) and globs (sorted), in the order given.

    Folders and globs skip names with a leading dot, unless the glob has the dot. A path that exists is no glob,
    whatever its name.

    Raises:
        ValueError: With ``field``: a path has no files, or a file has an unknown ending or is listed twice.
    """
    if isinstance(paths, str) or not all(isinstance(path, (str, PurePath)) and str(path).strip("/") for path in paths):
        raise ValueError(f"{field}={truncated_repr(paths)}: give a list of files, folders or globs.")
    named = [str(path) for path in paths]
    folders = Counter(map(parent, named))
    listings: dict[str, Mapping[str, Any]] = {}
    files: dict[str, InputFile] = {}
    for path in named:
        known = listings if folders[parent(path)] > _MAX_SINGLE_LOOKUPS else None
        for file in _files_at(path, field, endings, known):
            itself = file.path if is_remote(file.path) else os.path.realpath(file.path)
            if itself in files:
                other = files[itself].path
                raise ValueError(
                    f"{field}: {file.path} is listed twice{'' if other == file.path else f', also as {other}'}."
                )
            files[itself] = file
    return list(files.values())


def check_unchanged(file: InputFile, read: Iterable[_T]) -> Iterator[_T]:
    """Yield what is read of a file; return only if the file still has its listed state.

    Raises:
        TokenizingError: The file changed or is gone. This replaces errors of its content, which a user would not find.
    """
    changed = f"{file.path} changed while it was tokenized: stop the process that writes it, and clear the task."
    try:
        yield from read
    except (TokenizingError, OSError) as error:
        if not _is_as_listed(file):
            raise TokenizingError(changed) from error
        raise
    if not _is_as_listed(file):
        raise TokenizingError(changed)


def check_no_test_data(paths: Iterable[str], is_allowed: bool) -> None:
    """Refuse training paths that look like test data, as Marin does; print them if they are allowed.

    Raises:
        ValueError: A path has the word ``test`` in it, or ``validation``.
    """
    for path in paths:
        if _TEST_DATA.search(path):
            problem = f"train_paths: {path} looks like test data ('test' or 'validation')"
            if not is_allowed:
                raise ValueError(f"{problem}: train on other data, or set allow_test_in_train=True.")
            print(f"{problem}, which is allowed here.", flush=True)
            return


def _is_as_listed(file: InputFile) -> bool:
    if file.source is not None:  # of a commit, and checked by its sum
        return True
    try:
        return state_of(file.path) == (file.size_bytes, file.state)
    except FileNotFoundError:
        return False


def _files_at(
    path: str, field: str, endings: tuple[str, ...], listings: dict[str, Mapping[str, Any]] | None
) -> Iterator[InputFile]:
    fs, root = file_system_at(path)
    entry = _entry(fs, root, listings)
    if entry is None and has_magic(root):
        found = fs.glob(_pattern(fs, root), detail=True)
        entries = {name: entry for name, entry in found.items() if _is_visible(name, root)}
        names = [name for name in sorted(entries) if entries[name]["type"] == "file"]
    else:
        if entry is None:
            raise ValueError(f"{field}: there is nothing at {path}.")
        entries, names = {root: entry}, [root]
        if entry["type"] == "directory":
            entries = fs.find(root, detail=True)
            names = [name for name in sorted(entries) if name.endswith(endings) and _is_visible(name, root)]
        if odd := [name for name in names if entries[name]["type"] != "file"]:
            raise ValueError(f"{field}: {odd[0]} is no regular file, so reading it could block.")
    if not names:
        raise ValueError(f"{field}: {path} holds no file that can be read ({', '.join(endings)}).")
    for name in names:
        if not name.endswith(endings):
            raise ValueError(f"{field}: {name} has an unknown ending: there are {', '.join(endings)}.")
        full = str(fs.unstrip_protocol(name)) if is_remote(path) else name
        yield InputFile(full, entries[name]["size"], store_fingerprint(entries[name]))


def _pattern(fs: AbstractFileSystem, root: str) -> str:
    """Return the glob, in which an existing folder at its beginning is that folder, whatever its name."""
    folder = posixpath.dirname(root)
    while has_magic(folder):
        if fs.isdir(folder):
            return escape(folder) + root[len(folder) :]
        folder = posixpath.dirname(folder)
    return root


def _entry(fs: AbstractFileSystem, name: str, listings: dict[str, Mapping[str, Any]] | None) -> Any:
    """Return the store's entry of a file or folder; None if it does not exist."""
    if listings is not None:
        folder = parent(name)
        if folder not in listings:
            entries = fs.ls(folder, detail=True) if fs.exists(folder) else []
            listings[folder] = {entry["name"].rstrip("/"): entry for entry in entries}
        return listings[folder].get(name.rstrip("/"))
    try:
        return fs.info(name)
    except FileNotFoundError:
        return None


def _is_visible(name: str, root: str) -> bool:
    """Whether a file in a folder, or of a glob, is one of its data."""
    return hidden_parts(name) == hidden_parts(root) and posixpath.basename(name) not in IGNORED_FILES
