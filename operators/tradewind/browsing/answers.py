"""What the readers answer: listings, descriptions, pages of rows and of text. All of it is plain JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["folder", "file", "output", "other"]
"""An output is a folder with records; other are pipes, sockets and links that lead nowhere."""
View = Literal["entries", "rows", "text", "image", "arrays", "files"]
"""How a page can show a path: its entries, ``Description.arrays``, ``Description.files``, or another route's answer."""
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Root:
    """A folder or bucket that the deployment allows."""

    path: str


@dataclass(frozen=True)
class MadeBy:
    """Who made an output, by its records.

    Attributes:
        step: Name of the step.
        version: Name and hash of the version, which names the folder.
        state: ``finished``, ``failed``, ``at work`` and the like, as ``RecordState``.
        dag_id: The DAG that made it, with run and task; None if a script did.
        script: The script that made it.
        problem: Why the records cannot be read, for example those of a later version.
    """

    step: str | None = None
    version: str | None = None
    state: str | None = None
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    script: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Entry:
    """One name in a folder.

    Attributes:
        size: In bytes; of files only.
        modified: ISO 8601 in UTC, where the store tells it.
        format: Of ``formats``, by the name alone; of files only.
        made_by: Of outputs only.
        target: The path that a link leads to.
    """

    name: str
    path: str
    kind: Kind
    size: int | None = None
    modified: str | None = None
    format: str | None = None
    made_by: MadeBy | None = None
    target: str | None = None


@dataclass(frozen=True)
class EntryPage:
    """A page of a folder's entries, by name where ``in_order``.

    Attributes:
        next: ``after`` of the next page; None at the end.
        note: Why entries are missing or unordered, for example because the folder has millions.
    """

    path: str
    entries: list[Entry]
    next: str | None = None
    in_order: bool = True
    note: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table; ``type`` as the format names it, or the types that a page has seen."""

    name: str
    type: str


@dataclass(frozen=True)
class Fact:
    """A line of a description, for example ``rows`` and ``1,000``."""

    name: str
    value: str


@dataclass(frozen=True)
class ArrayInfo:
    """An array of a checkpoint.

    Attributes:
        size: In bytes, uncompressed.
    """

    name: str
    shape: list[int]
    dtype: str
    size: int


@dataclass(frozen=True)
class ListedFile:
    """A file of a manifest; ``path`` is absolute."""

    name: str
    path: str
    size: int
    checksum: str | None


@dataclass(frozen=True)
class Description:
    """What a path is.

    Attributes:
        format: Of ``formats``; ``folder`` for folders that are nothing more.
        title: The format in words.
        views: How it can be shown, the best first; empty if only as a download.
        columns: Of formats with a schema.
        rows: Number of rows, where the file tells it without being read.
        by_number: Whether ``start`` of the rows route takes row numbers; else only ``cursor`` and ``at``.
        facts: Further lines.
        arrays: The arrays of a checkpoint, at most ``limits.MAX_ARRAYS``.
        files: The files of a manifest, at most ``limits.MAX_FILES``.
        related: Paths that belong to it, with what they are: samples of an evaluation, splits of a token cache.
        made_by: The records of the output that it is, or that it is in.
        output: The path of that output.
        notes: What was cut, and what could not be read, as sentences.
    """

    path: str
    name: str
    kind: Kind
    format: str
    title: str
    views: list[View]
    size: int | None = None
    modified: str | None = None
    columns: list[Column] = field(default_factory=list)
    rows: int | None = None
    by_number: bool = False
    facts: list[Fact] = field(default_factory=list)
    arrays: list[ArrayInfo] = field(default_factory=list)
    files: list[ListedFile] = field(default_factory=list)
    related: list[Entry] = field(default_factory=list)
    made_by: MadeBy | None = None
    output: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Row:
    """A row of a page. It is not frozen, since that would triple the time of its making, and a page has 10,000.

    Attributes:
        at: Its place, for ``cursor`` and for the route of one value.
        number: From 1; None where the rows before are not counted.
        values: One for each column of the page; None also where the row lacks it. Whole numbers beyond 2⁵³, and what
            JSON cannot express, are texts.
        cut: Indices of the values that were cut.
        nested: Indices of the values that are lists or objects, as JSON texts.
        problem: Why the row cannot be read; it has no values then.
    """

    at: str
    number: int | None
    values: list[Scalar]
    cut: list[int] = field(default_factory=list)
    nested: list[int] = field(default_factory=list)
    problem: str | None = None


@dataclass(frozen=True)
class RowPage:
    """A page of rows.

    Attributes:
        columns: Those shown: of the file, or all that the rows of this page have.
        rows: Those that match the filter.
        next: ``cursor`` of the next page; None at the end of the file.
        total: Number of rows in the file, if known.
        scanned: Rows read for this page, those that the filter leaves out included.
        more: With a filter, the matching rows after this page; None if they were not counted in a short time.
        position: Place of the page's end in the file, from 0 to 1.
        note: Why the page ends early, or does not begin where asked.
    """

    path: str
    format: str
    columns: list[Column]
    rows: list[Row]
    next: str | None = None
    total: int | None = None
    scanned: int = 0
    more: int | None = None
    position: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class WholeValue:
    """One value, whole up to ``limits.MAX_WHOLE_VALUE_CHARS``.

    Attributes:
        kind: ``text``, ``number``, ``bool``, ``null``, ``bytes`` (as Base64), or ``json`` for lists and objects.
        chars: Length of the whole.
    """

    path: str
    at: str
    column: str
    kind: Literal["text", "number", "bool", "null", "bytes", "json"]
    text: str
    chars: int
    cut: bool = False


@dataclass(frozen=True)
class TextPage:
    """A range of a text, cut at characters; at lines too where they are short enough.

    Attributes:
        size: Bytes of the whole text; None if it is compressed and not yet read to its end.
        start: Offset of its first byte.
        end: Offset after its last.
        next: ``offset`` of the next page; None at the end.
        previous: ``offset`` of the page before; None at the beginning.
        is_binary: Whether bytes that are no text in UTF-8 were replaced.
        state: Tells a later request for another range whether the file is still the same.
    """

    path: str
    size: int | None
    start: int
    end: int
    text: str
    next: int | None = None
    previous: int | None = None
    is_binary: bool = False
    note: str | None = None
    state: str = ""
