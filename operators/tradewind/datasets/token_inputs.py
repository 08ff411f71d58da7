"""Which files are tokenized, in which order, and which state of each: known from listings, without reading any."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tradewind.datasets.files import is_remote, parent, state_of, store_fingerprint
from tradewind.datasets.token_rows import TokenizingError
from tradewind.storage import file_system_at
from tradewind.text import truncated_repr

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

ENDINGS: Final = tuple(
    f".{kind}{packed}" for kind in ("jsonl", "json") for packed in ("", ".gz", ".zst", ".zstd")
) + (".parquet",)  # fmt: skip
IGNORED_FILES: Final = frozenset({"provenance.json"})
"""What a download writes beside its files."""
_FEW: Final = 4
"""Files of one folder that are asked for one by one; more are looked up in one listing."""
_TEST_DATA: Final = re.compile(r"[^a-zA-Z]test[^a-zA-Z]|validation")


_T = TypeVar("_T")


@dataclass(frozen=True)
class InputFile:
    """One file of texts.

    Attributes:
        path: With the protocol of its store.
        size_bytes: As it lies there, compressed or not.
        state: Differs, as a rule, when the file is written again.
    """

    path: str
    size_bytes: int
    state: str


def input_files(paths: Sequence[str | PurePath], field: str) -> list[InputFile]:
    """The files of ``paths``: files, folders (all files below, sorted) and globs (sorted), in the order given.

    In folders and globs, names that begin with a dot are left out.

    Raises:
        ValueError: With ``field``: a path holds none, a file has an unknown ending, or stands there twice.
    """
    if isinstance(paths, str) or not all(isinstance(path, (str, PurePath)) and str(path).strip("/") for path in paths):
        raise ValueError(f"{field}={truncated_repr(paths)}: give a list of files, folders or globs.")
    named = [str(path) for path in paths]
    folders = Counter(map(parent, named))
    listings: dict[str, Mapping[str, Any]] = {}
    found: dict[str, InputFile] = {}
    for path in named:
        for file in _files_at(path, field, listings if folders[parent(path)] > _FEW else None):
            if file.path in found:
                raise ValueError(f"{field}: {file.path} stands there twice.")
            found[file.path] = file
    return list(found.values())


def unchanged(file: InputFile, read: Iterable[_T]) -> Iterator[_T]:
    """What is read of a file; the end comes only if the file is then still the one that was listed.

    Raises:
        TokenizingError: It is another one, or gone; so what is wrong in it is nothing that a person would find there.
    """
    changed = f"{file.path} changed while it was tokenized: tokenize what nobody writes to, and clear the task."
    try:
        yield from read
    except (TokenizingError, OSError) as error:
        if not _is_as_listed(file):
            raise TokenizingError(changed) from error
        raise
    if not _is_as_listed(file):
        raise TokenizingError(changed)


def check_no_test_data(paths: Iterable[str], is_allowed: bool) -> None:
    """Refuse to train on what looks like test data, as Marin does; if it is allowed, say so.

    Raises:
        ValueError: A path has the word ``test`` in it, or ``validation``.
    """
    for path in paths:
        if _TEST_DATA.search(path):
            told = f"train_paths: {path} looks like test data ('test' or 'validation')"
            if not is_allowed:
                raise ValueError(f"{told}: train on something else, or set allow_test_in_train=True.")
            print(f"{told}, which is allowed here.", flush=True)
            return


def _is_as_listed(file: InputFile) -> bool:
    try:
        return state_of(file.path) == (file.size_bytes, file.state)
    except FileNotFoundError:
        return False


def _files_at(path: str, field: str, listings: dict[str, Mapping[str, Any]] | None) -> Iterator[InputFile]:
    fs, root = file_system_at(path)
    if any(each in path for each in "*?["):
        entries = {name: entry for name, entry in fs.glob(root, detail=True).items() if _is_of_folder(name, "")}
        names = [name for name in sorted(entries) if entries[name]["type"] == "file"]
    else:
        entry = _entry(fs, root, listings)
        if entry is None:
            raise ValueError(f"{field}: there is nothing at {path}.")
        entries, names = {root: entry}, [root]
        if entry["type"] == "directory":
            entries = fs.find(root, detail=True)
            names = [name for name in sorted(entries) if name.endswith(ENDINGS) and _is_of_folder(name, root)]
        if odd := [name for name in names if entries[name]["type"] != "file"]:
            raise ValueError(f"{field}: {odd[0]} is no regular file, and could be waited for without end.")
    if not names:
        raise ValueError(f"{field}: {path} holds no file that can be tokenized ({', '.join(ENDINGS)}).")
    for name in names:
        if not name.endswith(ENDINGS):
            raise ValueError(f"{field}: {name} has an unknown ending: there are {', '.join(ENDINGS)}.")
        full = str(fs.unstrip_protocol(name)) if is_remote(path) else name
        yield InputFile(full, entries[name]["size"], store_fingerprint(entries[name]))


def _entry(fs: AbstractFileSystem, name: str, listings: dict[str, Mapping[str, Any]] | None) -> Any:
    """What the store says of a file or folder, None if it is not there."""
    if listings is not None:
        folder = parent(name)
        if folder not in listings:
            there = fs.ls(folder, detail=True) if fs.exists(folder) else []
            listings[folder] = {entry["name"].rstrip("/"): entry for entry in there}
        return listings[folder].get(name.rstrip("/"))
    try:
        return fs.info(name)
    except FileNotFoundError:
        return None


def _is_of_folder(name: str, folder: str) -> bool:
    below = name[len(folder) :].strip("/") if folder else posixpath.basename(name)
    return not any(part.startswith(".") for part in below.split("/")) and posixpath.basename(name) not in IGNORED_FILES
