"""Texts by ranges of bytes: logs of any size, from the beginning, the middle or the end."""

from __future__ import annotations

from typing import Final

from tradewind.browsing.access import Access, OutOfTimeError, Stored
from tradewind.browsing.answers import Fact, TextPage
from tradewind.browsing.formats import Details
from tradewind.browsing.packed import READ_ERRORS, content_of, damaged, is_packed, release
from tradewind.browsing.refusals import UnreadableError
from tradewind.records.parsing import replace_surrogates

_MIN_BYTES: Final = 4
"""A character of UTF-8."""
_MAX_LINE_SHARE: Final = 4
"""A page is cut at the end of a line if that takes off at most one part in so many."""


def describe(access: Access, stored: Stored) -> Details:
    """Return nothing but a hint at compression: a text says no more without being read."""
    return Details(facts=[Fact("compressed", "yes")] if is_packed(stored.path) else [])


def read_text(access: Access, stored: Stored, offset: int, count: int) -> TextPage:
    """Return ``count`` bytes of a text from ``offset`` on; a negative one counts from the end.

    Raises:
        UnreadableError: The file cannot be unpacked, or is packed and its end unknown.
    """
    count, is_tail = max(count, _MIN_BYTES), offset < 0
    file, stream = content_of(access, stored)
    size = None if stream is not None else stored.size
    try:
        if offset < 0 and size is None:
            raise UnreadableError(f"{stored.path} is compressed, so its end is found only by reading on.")
        if size is not None:
            offset = max(size + offset, 0) if offset < 0 else min(offset, size)
        file.seek(offset)
        data = file.read(count + 4)
    except OutOfTimeError as error:
        reached = (
            f"The reader came to {error.reached:.0%} of the file in the time of one request: load again to continue."
        )
        return TextPage(stored.path, size, offset, offset, "", next=offset, note=reached)
    except READ_ERRORS as error:
        raise damaged(stored.path, error) from error
    finally:
        release(file, stream)
    return _page(stored, size, offset, data, count, is_tail=is_tail)


def _page(stored: Stored, size: int | None, start: int, data: bytes, count: int, *, is_tail: bool) -> TextPage:
    is_end = len(data) <= count
    skipped = _rest_of_character(data) if start else 0
    if is_tail and start:  # begin with a whole line
        line = data.find(b"\n", 0, count // _MAX_LINE_SHARE) + 1
        skipped = max(skipped, line)
    data = data[skipped:count]
    if not is_end:
        line_end = data.rfind(b"\n") + 1
        data = data[
            : line_end if line_end and len(data) - line_end <= count // _MAX_LINE_SHARE else _whole_characters(data)
        ]
    begin = start + skipped
    end = begin + len(data)
    try:
        text, is_binary = data.decode(), False
    except UnicodeDecodeError:
        text, is_binary = data.decode("utf-8", "replace"), True
    is_binary = is_binary or "\0" in text
    following = None if is_end or end == begin else end
    previous = max(begin - count, 0) if begin else None
    return TextPage(stored.path, size, begin, end, replace_surrogates(text), following, previous, is_binary)


def _rest_of_character(data: bytes) -> int:
    """Count the bytes at the beginning that continue a character of UTF-8."""
    return next((at for at, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), 0 if len(data) < 4 else 3)


def _whole_characters(data: bytes) -> int:
    """Return the length without an incomplete character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return len(data) if back >= needed else len(data) - back
    return len(data)
