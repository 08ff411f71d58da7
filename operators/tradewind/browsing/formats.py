"""The formats that pages know: one entry each, with its modules loaded when a file of it is read."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from tradewind.browsing.access import Access, Stored
from tradewind.browsing.answers import ArrayInfo, Column, Entry, Fact, ListedFile, View
from tradewind.browsing.paging import Asked, RowSource


@dataclass
class Details:
    """What a format's reader tells about a file or folder; the fields are those of ``Description``."""

    columns: list[Column] = field(default_factory=list)
    rows: int | None = None
    facts: list[Fact] = field(default_factory=list)
    arrays: list[ArrayInfo] = field(default_factory=list)
    files: list[ListedFile] = field(default_factory=list)
    related: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name: As answers name it.
        title: In words.
        views: How a page can show it, the best first.
        module: Module of this package with ``describe(access, stored)``, and ``rows(access, stored, asked)`` if the
            format has rows; empty for none.
        endings: Of file names, in lower case.
        files: Names of which all are in a folder of this format.
        magic: Beginnings of files.
        by_number: Whether a row is found by its number.
    """

    name: str
    title: str
    views: tuple[View, ...]
    module: str = ""
    endings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    by_number: bool = False

    def describe(self, access: Access, stored: Stored) -> Details:
        """Return the details of a file or folder of this format."""
        if not self.module:
            return Details()
        read: Callable[..., Any] = self._loaded().describe
        return cast(Details, read(access, stored))

    def rows(self, access: Access, stored: Stored, asked: Asked) -> RowSource:
        """Return the rows of a file of this format."""
        read: Callable[..., Any] = self._loaded().rows
        return cast(RowSource, read(access, stored, asked))

    def _loaded(self) -> Any:
        return importlib.import_module(f"tradewind.browsing.{self.module}")


def _packed(*endings: str) -> tuple[str, ...]:
    return tuple(f"{ending}{packing}" for packing in ("", ".gz", ".zst", ".zstd", ".bz2") for ending in endings)


TEXT: Final = Format(
    "text", "text", ("text",), "texts",
    _packed(
        ".txt", ".log", ".out", ".err", ".py", ".toml", ".cfg", ".ini", ".sh", ".xml", ".html", ".svg", ".css", ".js"
    ),
)  # fmt: skip
BINARY: Final = Format("binary", "binary file", ())
FOLDER: Final = Format("folder", "folder", ("entries",))
FORMATS: Final = (
    Format("jsonl", "JSON lines", ("rows", "text"), "jsonl", _packed(".jsonl", ".ndjson", ".jsonlines")),
    Format("parquet", "Parquet", ("rows",), "parquet", (".parquet",), magic=(b"PAR1",), by_number=True),
    Format("csv", "CSV", ("rows", "text"), "csv_rows", _packed(".csv", ".tsv")),
    Format("markdown", "Markdown", ("text",), "texts", (".md", ".markdown")),
    Format("json", "JSON", ("text",), "texts", _packed(".json")),
    Format("yaml", "YAML", ("text",), "texts", (".yaml", ".yml")),
    TEXT,
    Format(
        "image", "image", ("image",), "images", (".png", ".jpg", ".jpeg", ".gif", ".webp"),
        magic=(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a"),
    ),
    Format("safetensors", "safetensors", ("arrays",), "safetensors", (".safetensors",)),
    Format(
        "token_cache", "token cache", ("rows", "entries"), "token_cache", files=("shard_ledger.json",), by_number=True
    ),
    Format("checkpoint", "checkpoint of JAX arrays", ("arrays", "entries"), "checkpoint", files=("manifest.ocdbt",)),
    Format("output", "output of a step", ("entries", "files"), "outputs"),
    BINARY,
    FOLDER,
)  # fmt: skip
BY_NAME: Final = {each.name: each for each in FORMATS}


def format_of_name(name: str) -> Format | None:
    """Return the format of a file by its name; None if that says nothing."""
    lower = name.lower()
    return next((each for each in FORMATS if lower.endswith(each.endings) and each.endings), None)


def format_of_head(head: bytes) -> Format:
    """Return the format of a file by its first bytes: text if they are text in UTF-8."""
    known = next((each for each in FORMATS if each.magic and head.startswith(each.magic)), None)
    if known is not None:
        return known
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return BY_NAME["image"]
    try:
        head[:-3].decode() if len(head) > 3 else head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 7:
            return BINARY
    return BINARY if b"\0" in head else TEXT
