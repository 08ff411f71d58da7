"""Decode the body of an HTTP response as it was sent: chunks, and the content codings gzip, deflate, br and zstd.

Nothing decodes to more than a bound. Archives often hold bodies that their writer had decoded, with headers that say
otherwise; such a body is plain text and stays as it is.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Final

_MAX_CODINGS: Final = 5
_MAX_MEMBERS: Final = 100
"""Of gzip; a million empty ones are a few KB, packed again, and half a minute of work."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_CHUNK: Final = re.compile(rb"[ \t\r\n]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_SAMPLE_BYTES: Final = 4096
_PIECE_BYTES: Final = 1 << 20
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")

Decoder = Callable[[bytes, int], tuple[bytes, bool]]
"""Returns at most so many bytes and one more, and whether the end was there."""


class BodyError(ValueError):
    """A body is not what its headers say, or too large."""


def decode_body(body: bytes, headers: Mapping[str, str], max_bytes: int, may_be_cut: bool = False) -> bytes:
    """Return the content of a body.

    Args:
        body: As it was sent.
        headers: Names in lower case.
        max_bytes: Bound, also for what is between two codings.
        may_be_cut: Take the beginning of a body whose end is missing.

    Raises:
        BodyError: It is damaged, cut or too large.
    """
    codings = [*_codings(headers, "content-encoding"), *_codings(headers, "transfer-encoding")]
    if len(codings) > _MAX_CODINGS:
        raise BodyError(f"its body has {len(codings):,} codings")
    for coding in reversed(codings):
        body = _decoded(body, coding, max_bytes, may_be_cut)
    return body


def _codings(headers: Mapping[str, str], name: str) -> list[str]:
    """Return known codings; servers send others, such as ``utf-8``, and browsers take no notice."""
    named = [coding.strip().lower().removeprefix("x-") for coding in headers.get(name, "").split(",")]
    return [coding for coding in named if coding in _DECODERS]


def _decoded(body: bytes, coding: str, max_bytes: int, may_be_cut: bool) -> bytes:
    if not body:  # of an answer to HEAD, or a redirection
        return body
    try:
        content, is_whole = _DECODERS[coding](body, max_bytes)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        if not _NO_TEXT.search(body, 0, _SAMPLE_BYTES):
            return body
        raise BodyError(f"its body is not {coding}: {error}") from error
    if len(content) > max_bytes:
        raise BodyError(f"its body has more than {max_bytes:,} bytes")
    if not is_whole and not may_be_cut:
        raise BodyError(f"its body in {coding} is cut or damaged")
    return content


def _unzipped(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    content = bytearray()
    for _ in range(_MAX_MEMBERS):
        inflater = zlib.decompressobj(_GZIP)
        try:
            content += inflater.decompress(body, max_bytes + 1 - len(content))
        except zlib.error:  # of what follows a beginning that is good
            if not content:
                raise
            return bytes(content), False
        body = inflater.unused_data.lstrip(b"\0")
        if len(content) > max_bytes or not inflater.eof or not body:
            return bytes(content), inflater.eof
    raise ValueError(f"it has more than {_MAX_MEMBERS:,} members")


def _inflated(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """Inflate with the header of zlib, as HTTP says, or without, as some servers do."""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, max_bytes + 1)
    except zlib.error:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        content = inflater.decompress(body, max_bytes + 1)
    return content, inflater.eof


def _from_brotli(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    from fastwarc.stream_io import BrotliReader

    return _pieces(BrotliReader(io.BytesIO(body)).read, max_bytes)


def _from_zstd(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    from fastwarc.stream_io import ZstdReader

    return _pieces(ZstdReader(io.BytesIO(body)).read, max_bytes)


def _pieces(read: Callable[[int], bytes], max_bytes: int) -> tuple[bytes, bool]:
    content, is_whole = bytearray(), True
    try:
        while len(content) <= max_bytes and (piece := read(_PIECE_BYTES)):
            content += piece
    except (OSError, EOFError, zlib.error):  # of what follows a beginning that is good
        if not content:
            raise
        is_whole = False
    return bytes(content[: max_bytes + 1]), is_whole


def _dechunked(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    content, at = bytearray(), 0
    while header := _CHUNK.match(body, at):
        size = int(header[1], 16)
        if not size:
            return bytes(content), True
        at = header.end() + size
        content += body[header.end() : at]
    if not at:
        raise ValueError("no chunk begins it")
    return bytes(content), False


_DECODERS: Final[Mapping[str, Decoder]] = {
    "br": _from_brotli,
    "chunked": _dechunked,
    "deflate": _inflated,
    "gzip": _unzipped,
    "zstd": _from_zstd,
}
