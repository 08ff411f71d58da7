"""Pages of HTML, from the rows of WARC files, archives and tables; how their bytes become text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.datasets.rows import RowError, selected
from tradewind.text import truncated_repr

HTML_TYPES: Final = ("text/html", "application/xhtml+xml")
_UNKNOWN_TYPES: Final = ("", "application/octet-stream", "unknown")
_LOOKS_LIKE_HTML: Final = re.compile(
    rb"\s*(?:<!--.*?-->\s*|<\?xml.*?>\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S
)
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,>]{1,40})""", re.I)
_META: Final = re.compile(rb"""<meta\b[^>]{0,500}?charset\s*=\s*["']?\s*([^\s"';,/>]{1,40})""", re.I)
_MARKS: Final = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_META_BYTES: Final = 1 << 13
_SAMPLE_BYTES: Final = 1 << 10
_MAX_BROKEN: Final = 0.1
"""Share of broken characters among those beyond ASCII, above which the encoding is not the declared one."""


@dataclass(frozen=True)
class Page:
    """A page before its text is extracted.

    Attributes:
        html: As it was sent, or a text.
        id: What tells it from others.
        url: Its address.
        content_type: What the server said, with the encoding.
        source: Name of its collection.
        metadata: What else is known.
    """

    html: bytes | str
    id: str | None
    url: str | None
    content_type: str | None = None
    source: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def page_of_record(row: Mapping[str, Any]) -> Page | str:
    """Return the page of a record of a WARC file, or why it is none, as the name of a counter."""
    status, content_type = row["status"], row["content_type"]
    if status is not None and not 200 <= status < 300:
        return "other_status"
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind not in HTML_TYPES and (
        kind not in _UNKNOWN_TYPES or not _LOOKS_LIKE_HTML.match(row["payload"][:_SAMPLE_BYTES])
    ):
        return "other_type"
    about = {name: row[name] for name in ("date", "truncated") if row[name] is not None}
    own = (row["record_id"] or "").strip("<>") or None
    return Page(row["payload"], own, row["url"] or None, content_type, None, about)


def page_of_member(row: Mapping[str, Any]) -> Page:
    """Return the page of a member of an archive."""
    return Page(row["content"], row["filename"], None)


def page_of_row(row: Any, html_field: str, url_field: str, id_field: str | None) -> Page:
    """Return the page of a row of a table; columns besides those of the page become metadata."""
    html = selected(row, [html_field])[html_field]
    if html is not None and not isinstance(html, (str, bytes)):
        raise RowError(f"The column {html_field!r} is {truncated_repr(html)}: give the column of the HTML.")
    url = row.get(url_field)
    own = selected(row, [id_field])[id_field] if id_field else row.get("id", url)
    known = {html_field, url_field, id_field or "id", "source", "metadata"}
    others = {name: value for name, value in row.items() if name not in known}
    inner = row.get("metadata")
    about = (
        {**others, **inner} if isinstance(inner, dict) else others if inner is None else {**others, "metadata": inner}
    )
    source = row.get("source")
    return Page(
        html or "",
        None if own is None else str(own),
        None if url is None else str(url),
        None,
        None if source is None else str(source),
        json.loads(json.dumps(about, default=str)),
    )


def decoded_html(html: bytes | str, content_type: str | None = None) -> str:
    """Return HTML as text, by its byte order mark, the server's header, its own ``meta``, or a guess.

    A declared encoding that does not fit is a mistake of the server. Single broken characters are replaced.
    """
    if isinstance(html, str):
        return html.replace("\0", "")
    from resiliparse.parse.encoding import detect_encoding

    known = _declared(html, content_type)
    for encoding in [known, "utf-8"] if known is not None else ["utf-8"]:
        try:
            return _text(html, encoding, "strict")
        except UnicodeDecodeError:
            text = _text(html, encoding, "replace")
            beyond = sum(not char.isascii() for char in text[: 1 << 16])
            if text[: 1 << 16].count("\ufffd") <= _MAX_BROKEN * beyond:
                return text
    return _text(html, detect_encoding(html) or "cp1252", "replace")


def _text(html: bytes, encoding: str, errors: str) -> str:
    return html.decode(encoding, errors).removeprefix("\ufeff").replace("\0", "")


def _declared(html: bytes, content_type: str | None) -> str | None:
    """Return the name that Python gives the declared encoding; None if there is none, or it is unknown."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    for mark, encoding in _MARKS.items():
        if html.startswith(mark):
            return encoding
    header, meta = _CHARSET.search(content_type or ""), _META.search(html, 0, _META_BYTES)
    labels = [header[1] if header else "", meta[1].decode("latin-1") if meta else ""]
    for label in filter(None, labels):
        if (known := map_encoding_to_html5(label, fallback_utf8=False)) is not None:
            return known
    return None
