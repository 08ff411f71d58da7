"""What pages and the command line ask: each answer comes from the reader of the path's format."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tradewind.browsing import images, texts
from tradewind.browsing.access import Access, Stored
from tradewind.browsing.answers import Description, EntryPage, RowPage, TextPage, WholeValue
from tradewind.browsing.formats import BY_NAME, FOLDER, FORMATS, TEXT, Details, Format, format_of_head, format_of_name
from tradewind.browsing.limits import (
    DOWNLOAD_PIECE_BYTES,
    MAX_DOWNLOAD_BYTES,
    MAX_LISTED,
    MAX_ROWS,
    MAX_TEXT_BYTES,
    MAX_VALUE_CHARS,
    MAX_WHOLE_VALUE_CHARS,
)
from tradewind.browsing.listing import is_output_folder, list_entries, names_in
from tradewind.browsing.made_by import maker_above
from tradewind.browsing.paging import Asked, make_page, make_value
from tradewind.browsing.refusals import BrowsingError, ChangedError, TooLargeError, UnreadableError, WrongKindError
from tradewind.datasets.files import basename, join
from tradewind.text import single_line

_HEAD_BYTES: Final = 4096
_MARK: Final = "@"
"""Between a place in a file and what tells whether the file is still the same."""


def describe(access: Access, path: str) -> Description:
    """Return what is at ``path``."""
    stored = access.stat(path)
    found = format_at(access, stored)
    details, notes = Details(), []
    try:
        details = found.describe(access, stored)
    except BrowsingError as error:  # a damaged file can still be downloaded
        notes.append(str(error))
    made = None
    try:
        made = maker_above(access, path)
    except BrowsingError as error:
        notes.append(single_line(error))
    is_output = stored.is_folder and made is not None and made[0] == path.rstrip("/")
    return Description(
        path,
        basename(path) or path,
        "output" if is_output else "folder" if stored.is_folder else "file",
        found.name,
        found.title,
        list(found.views),
        None if stored.is_folder else stored.size,
        stored.modified,
        details.columns,
        details.rows,
        found.by_number,
        details.facts,
        details.arrays,
        details.files,
        details.related,
        made[1] if made else None,
        made[0] if made else None,
        [*notes, *details.notes],
    )


def list_folder(access: Access, path: str, prefix: str = "", after: str | None = None, limit: int = 200) -> EntryPage:
    """Return a page of a folder's entries."""
    stored = access.stat(path)
    if not stored.is_folder:
        raise WrongKindError(f"{path} is a file, and no folder.")
    return list_entries(access, stored, prefix, after, min(limit, MAX_LISTED))


def rows(access: Access, path: str, **asked: Any) -> RowPage:
    """Return a page of rows; the arguments are those of ``Asked``."""
    stored = access.stat(path)
    found = _with_rows(access, stored)
    wanted = Asked(**asked)
    wanted = replace(wanted, limit=min(wanted.limit, MAX_ROWS), chars=min(wanted.chars, MAX_VALUE_CHARS))
    if wanted.start is not None and not found.by_number:
        if wanted.start:
            raise UnreadableError(f"Rows of {found.title} have no numbers to begin at: give a cursor, or a fraction.")
        wanted = replace(wanted, start=None)
    mark = _mark_of(access, stored, found)
    place, note = _place(path, wanted.cursor, mark, may_grow=not found.by_number)
    wanted = replace(wanted, cursor=place)
    source = found.rows(access, stored, wanted)
    try:
        page = make_page(path, found.name, source, wanted, access, mark)
    finally:
        source.close()
    return replace(page, note=_joined(note, page.note))


def value(access: Access, path: str, at: str, column: str) -> WholeValue:
    """Return one value whole."""
    stored = access.stat(path)
    found = _with_rows(access, stored)
    place, _ = _place(path, at, _mark_of(access, stored, found), may_grow=False)
    # One character more than is shown tells that the value is cut.
    source = found.rows(access, stored, Asked(cursor=place, limit=1, chars=MAX_WHOLE_VALUE_CHARS))
    try:
        return replace(make_value(path, source, place or "", column), at=at)
    finally:
        source.close()


def text(access: Access, path: str, offset: int = 0, count: int = 1 << 16, state: str = "") -> TextPage:
    """Return a range of a file as text, whatever it is.

    Args:
        state: Of the range from which the user came.

    Raises:
        ChangedError: The file is another since; one that has only grown is read on.
    """
    stored = access.stat(path)
    if stored.is_folder:
        raise WrongKindError(f"{path} is a folder.")
    mark = _mark_of(access, stored)
    _, note = _place(path, state, mark, may_grow=True)
    page = texts.read_text(access, stored, offset, min(count, MAX_TEXT_BYTES))
    return replace(page, state=mark, note=_joined(note, page.note))


def image(access: Access, path: str) -> tuple[str, bytes]:
    """Return media type and bytes of an image."""
    stored = access.stat(path)
    if stored.is_folder:
        raise WrongKindError(f"{path} is a folder.")
    return images.read_image(access, stored)


def piece(access: Access, path: str, offset: int, state: str = "") -> tuple[Stored, bytes]:
    """Return a piece of a file for its download, and what the file is.

    Args:
        state: Of the file when its download began.

    Raises:
        UnreadableError: The file has changed since.
        TooLargeError: It is too large to be passed on.
    """
    stored = access.stat(path)
    if stored.is_folder:
        raise WrongKindError(f"{path} is a folder; a page downloads files.")
    if stored.size > MAX_DOWNLOAD_BYTES:
        raise TooLargeError(
            f"{path} has {stored.size:,} bytes, and {MAX_DOWNLOAD_BYTES >> 30} GB pass through the API server at most: "
            "copy it from the store itself."
        )
    if state and state != stored.state:
        raise UnreadableError(f"{path} changed during the download.")
    with access.open(path) as file:
        file.seek(offset)
        return stored, file.read(DOWNLOAD_PIECE_BYTES)


def format_at(access: Access, stored: Stored) -> Format:
    """Return the format of what is at a path: by its name, the names inside, or its first bytes."""
    if stored.is_folder:
        known = {name: each for each in FORMATS for name in each.files}
        present = names_in(access, stored.path, tuple(known))
        found = next((known[name] for name in known if name in present), None)
        if found is not None:
            return found
        return BY_NAME["output"] if is_output_folder(access, stored.path) else FOLDER
    named = format_of_name(stored.path)
    if named is not None:
        return named
    with access.open(stored.path) as file:
        return format_of_head(file.read(_HEAD_BYTES)) if stored.size else TEXT


def _mark_of(access: Access, stored: Stored, found: Format = TEXT) -> str:
    """Return what ends the places in a file: it tells whether the file has changed, or only grown, since."""
    content = access.stat(join(stored.path, found.files[0])) if stored.is_folder else stored
    identity = zlib.crc32(content.identity.encode()) & 0xFFFF if content.identity else 0
    return f"{_MARK}{zlib.crc32(content.state.encode()):08x}{identity:04x}{content.size:x}"


def _place(path: str, cursor: str | None, mark: str, *, may_grow: bool) -> tuple[str | None, str | None]:
    """Return a cursor without its mark, and a note if the file has grown since.

    Raises:
        ChangedError: The file is another now, so the place has other rows.
    """
    place, is_marked, old = (cursor or "").partition(_MARK)
    new = mark[len(_MARK) :]
    if not cursor or not is_marked or old == new:
        return place or None, None
    try:
        has_grown = old[8:12] == new[8:12] != "0000" and int(old[12:], 16) < int(new[12:], 16)
    except ValueError:
        raise UnreadableError(f"{path} has no place {cursor!r}.") from None
    if not may_grow or not has_grown:
        raise ChangedError(
            f"{path} has changed since that page was read, so it has something else there now. Begin anew."
        )
    return (
        place,
        "The file has grown since the page before. If it was written anew, this does not continue it: begin anew.",
    )


def _joined(*notes: str | None) -> str | None:
    return " ".join(filter(None, notes)) or None


def _with_rows(access: Access, stored: Stored) -> Format:
    found = format_at(access, stored)
    if "rows" not in found.views:
        raise WrongKindError(f"{stored.path} is {found.title}, which has no rows.")
    return found


CALLS: Final[dict[str, Callable[..., Any]]] = {
    "describe": describe,
    "list": list_folder,
    "rows": rows,
    "value": value,
    "text": text,
    "image": image,
    "piece": piece,
}
"""By name, as ``pool`` passes them to a reader's process."""
