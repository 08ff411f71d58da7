"""Decode the body of an HTTP response as it was sent: chunks, and the content codings gzip, deflate, br and zstd.

Nothing decodes to more than a bound. Archives often hold bodies that their writer had decoded, with headers that say
otherwise; such a body is plain text and stays as it is.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

_GZIP: Final = 31
_ZLIB: Final = 15
_RAW: Final = -15
"""Window bits, by which zlib knows the form of its input."""
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
    except (OSError, zlib.error, ValueError) as error:
        if not _NO_TEXT.search(body, 0, _SAMPLE_BYTES):
            return body
        raise BodyError(f"its body is not {coding}: {error}") from error
    if len(content) > max_bytes:
        raise BodyError(f"its body has more than {max_bytes:,} bytes")
    if not is_whole and not may_be_cut:
        raise BodyError(f"its body in {coding} is cut")
    return content


def _unzipped(body: bytes, max_bytes: int, window_bits: int = _GZIP) -> tuple[bytes, bool]:
    content, is_whole = b"", False
    while body and len(content) <= max_bytes:
        inflater = zlib.decompressobj(window_bits)
        content += inflater.decompress(body, max_bytes + 1 - len(content))
        is_whole, body = inflater.eof, inflater.unused_data
        if not body.startswith(b"\x1f\x8b"):  # servers pad bodies
            break
    return content, is_whole


def _inflated(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """Inflate with the header of zlib, as HTTP says, or without, as some servers do."""
    try:
        return _unzipped(body, max_bytes, _ZLIB)
    except zlib.error:
        return _unzipped(body, max_bytes, _RAW)


def _from_brotli(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    from fastwarc.stream_io import BrotliReader

    return _pieces(BrotliReader(io.BytesIO(body)), max_bytes)


def _from_zstd(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    from fastwarc.stream_io import ZstdReader

    return _pieces(ZstdReader(io.BytesIO(body)), max_bytes)


def _pieces(reader: Any, max_bytes: int) -> tuple[bytes, bool]:
    content = b""
    try:
        while len(content) <= max_bytes and (piece := reader.read(_PIECE_BYTES)):
            content += piece
    except OSError:
        if not content:
            raise
        return content, False
    return content[: max_bytes + 1], True


def _dechunked(body: bytes, max_bytes: int) -> tuple[bytes, bool]:
    chunks: list[bytes] = []
    at = 0
    while header := _CHUNK.match(body, at):
        size = int(header[1], 16)
        if not size:
            return b"".join(chunks), True
        at = header.end() + size
        chunks.append(body[header.end() : at])
    if not chunks:
        raise ValueError("no chunk begins it")
    return b"".join(chunks), False


_DECODERS: Final[Mapping[str, Decoder]] = {
    "br": _from_brotli,
    "chunked": _dechunked,
    "deflate": _inflated,
    "gzip": _unzipped,
    "zstd": _from_zstd,
}
