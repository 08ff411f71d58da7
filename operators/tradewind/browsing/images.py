"""Images that browsers draw and that cannot run code, by their first bytes and not by their names."""

from __future__ import annotations

import struct
from typing import Final

from tradewind.browsing.access import Access, Stored
from tradewind.browsing.answers import Fact
from tradewind.browsing.formats import Details
from tradewind.browsing.limits import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS
from tradewind.browsing.refusals import TooLargeError, UnreadableError, WrongKindError

_HEAD_BYTES: Final = 1 << 18
"""Bytes in which the size of an image is looked for: a JPEG may begin with large comments."""
_NO_FRAME: Final = frozenset({0xC4, 0xC8, 0xCC})
"""Segments of JPEG that are numbered among the frames, and are none."""


def describe(access: Access, stored: Stored) -> Details:
    """Return type and size of an image."""
    with access.open(stored.path) as file:
        kind, width, height = size_of(stored.path, file.read(_HEAD_BYTES))
    return Details(facts=[Fact("type", kind), Fact("width and height", f"{width:,} × {height:,}")])


def read_image(access: Access, stored: Stored) -> tuple[str, bytes]:
    """Return the media type and the bytes of an image.

    Raises:
        WrongKindError: It is none of PNG, JPEG, GIF and WebP.
        TooLargeError: It has too many bytes or pixels.
    """
    if stored.size > MAX_IMAGE_BYTES:
        raise TooLargeError(f"{stored.path} has {stored.size:,} bytes; a page shows {MAX_IMAGE_BYTES >> 20} MB.")
    with access.open(stored.path) as file:
        data = file.read(MAX_IMAGE_BYTES + 1)
    kind, width, height = size_of(stored.path, data[:_HEAD_BYTES])
    if width * height > MAX_IMAGE_PIXELS:
        raise TooLargeError(
            f"{stored.path} has {width:,} × {height:,} pixels; a page shows {MAX_IMAGE_PIXELS:,}. Download it."
        )
    return kind, data


def size_of(path: str, head: bytes) -> tuple[str, int, int]:
    """Return media type, width and height of an image that begins with ``head``.

    Raises:
        WrongKindError: It is no image that a page shows.
        UnreadableError: It has no size.
    """
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
            return "image/png", *struct.unpack(">II", head[16:24])
        if head.startswith((b"GIF87a", b"GIF89a")):
            return "image/gif", *struct.unpack("<HH", head[6:10])
        if head.startswith(b"\xff\xd8\xff"):
            return "image/jpeg", *_jpeg_size(head)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return "image/webp", *_webp_size(head)
    except (struct.error, IndexError, ValueError):
        raise UnreadableError(f"{path} is a damaged image: its size is missing.") from None
    raise WrongKindError(f"{path} is no PNG, JPEG, GIF or WebP image. SVG is shown as text, since it can run code.")


def _jpeg_size(head: bytes) -> tuple[int, int]:
    at = 2
    while True:
        while head[at] == 0xFF and head[at + 1] == 0xFF:
            at += 1
        if head[at] != 0xFF:
            raise ValueError("no segment")
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += (
            2 if marker == 0x01 or 0xD0 <= marker <= 0xD8 else 2 + max(struct.unpack(">H", head[at + 2 : at + 4])[0], 2)
        )


def _webp_size(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", head[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("no chunk")
