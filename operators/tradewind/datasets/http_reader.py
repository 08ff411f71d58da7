"""Read files over HTTP: continue after broken connections (RFC 9110, ranges), and check redirects.

A redirect must not lead to addresses that only this machine or its cloud should ask. A cloud machine finds its own
credentials at ``169.254.169.254``, and private servers on its loopback.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from tradewind.datasets.source_files import DamagedDownloadError, DownloadError, SourceFile
from tradewind.text import single_line

if TYPE_CHECKING:
    import requests

CHUNK_BYTES: Final = 256 * 1024
"""Bytes per read; an incomplete chunk of a broken connection is dropped."""
MAX_FAILURES: Final = 8
"""Failures in a row, without a byte in between: with the pauses some three minutes."""
MAX_PAUSE_S: Final = 60.0
MAX_RETRY_AFTER_S: Final = 300.0
"""Upper bound for a server's ``Retry-After``."""
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_TIMEOUT_S: Final = (15.0, 60.0)
_QUERY: Final = re.compile(r"\?[^\s'\")]+")
_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_COUNT: Final = re.compile(r"\d{1,18}", re.ASCII)
_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "instance-data", "metadata.azure.internal"})
"""Metadata servers of clouds."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def guarded_session() -> requests.Session:
    """Return a session that checks redirects before it follows them, and keeps a given token."""
    import requests

    class Guarded(requests.Session):
        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            if target is not None:
                check_redirect(resp.url, urljoin(resp.url, target))
            return target

        def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
            if "Authorization" in request.headers:
                request.auth = lambda prepared: prepared  # else a .netrc would replace the token
            return super().prepare_request(request)

        def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
            given = prepared_request.headers.get("Authorization")
            super().rebuild_auth(prepared_request, response)
            if given and not self.should_strip_auth(response.request.url, prepared_request.url):
                prepared_request.headers["Authorization"] = given  # here, too

    return Guarded()


def check_redirect(url: str, target: str) -> None:
    """Check a redirect of the server at ``url`` to ``target``.

    Raises:
        DownloadError: It drops encryption, or leads to this machine or to its cloud's private servers.
        ValueError: It is no address.
    """
    given, parts = urlsplit(url), urlsplit(target)
    host = (parts.hostname or "").rstrip(".").lower()
    if given.scheme == "https" and parts.scheme != "https":
        raise _redirect_error(url, host, "whose scheme is not https")
    if host in _METADATA_NAMES:
        raise _redirect_error(url, host, "which tells a machine of a cloud its credentials")
    addresses = _addresses(host)
    if any(each.is_link_local for each in addresses):
        raise _redirect_error(url, host, "which is of this machine's own network alone")
    is_here = any(each.is_loopback or each.is_unspecified for each in addresses)
    if is_here and not any(each.is_loopback for each in _addresses(given.hostname or "")):
        raise _redirect_error(url, host, "which is this machine itself")


def _addresses(host: str) -> list[_Address]:
    """Resolve a host name; empty if only a proxy knows it."""
    try:
        texts = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)} if host else set()
    except (OSError, UnicodeError):
        return []
    addresses = [ipaddress.ip_address(str(text).partition("%")[0]) for text in texts]
    return [getattr(address, "ipv4_mapped", None) or address for address in addresses]


def _redirect_error(url: str, host: str, why: str) -> DownloadError:
    return DownloadError(
        f"{url.partition('?')[0]} redirects to {single_line(host)!r}, {why}: it was not followed. Give another address."
    )


class TransientError(Exception):
    """A failure to retry, after ``pause_s`` if the server asked for a pause."""

    def __init__(self, problem: str, pause_s: float | None = None) -> None:
        super().__init__(problem)
        self.pause_s = pause_s


@dataclass
class _Answer:
    """Size and version that all responses to one read must share."""

    size: int | None
    version: str | None = None
    """The ``ETag``, else ``Last-Modified``."""


class HttpReader:
    """Reads files; threads may share it.

    Args:
        headers: Sent to ``host`` only, since they may hold a token.
        host: Origin that gets ``headers``.
        pause: Waits the given seconds.
    """

    def __init__(
        self, headers: Mapping[str, str] | None = None, host: str = "", pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._headers = dict(headers or {})
        self._host = host
        self._pause = pause
        self._sessions = threading.local()
        """One session per thread, which keeps its connection from file to file."""

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """Yield the bytes of the file; after a break, continue at the next byte.

        Raises:
            DownloadError: The file is not available, or has changed since the first byte (``DamagedDownloadError`` if a
            checksum is known).
        """
        known = _Answer(file.size_bytes)
        position = failures = 0
        while True:
            try:
                for chunk in self._request(position, file, known):
                    position += len(chunk)
                    failures = 0
                    yield chunk
                if known.size is None or position >= known.size:
                    return
                raise TransientError(f"the connection ended after {position:,} of {known.size:,} bytes")
            except TransientError as error:
                failures += 1
                if failures > MAX_FAILURES:
                    raise DownloadError(f"{file.url} cannot be read: {error}; tried {failures} times.") from error
                self._pause(pause_s(failures, error.pause_s))

    def _request(self, position: int, file: SourceFile, known: _Answer) -> Iterator[bytes]:
        import requests

        headers = {"Accept-Encoding": "identity"}  # sizes and ranges of the file itself
        if self._host and file.url.startswith(f"{self._host}/"):
            headers |= self._headers
        if position:
            headers["Range"] = f"bytes={position}-"
        try:
            with self._session().get(file.url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
                _check_status(file, response, position)
                skipped = _check_same(file, response, position, known)
                for chunk in response.iter_content(CHUNK_BYTES):
                    fresh = chunk[skipped:]
                    skipped -= len(chunk) - len(fresh)
                    if fresh:
                        yield fresh
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
            raise TransientError(f"{type(error).__name__}: {_without_query(error)}") from None
        except (requests.RequestException, ValueError) as error:  # ValueError: an invalid address
            raise DownloadError(f"{file.url} cannot be read: {_without_query(error)}") from None

    def _session(self) -> requests.Session:
        if not hasattr(self._sessions, "own"):
            self._sessions.own = guarded_session()
        session: requests.Session = self._sessions.own
        return session


def pause_s(failures: int, asked_for_s: float | None) -> float:
    """Return the pause after ``failures`` in a row: the server's, else exponential backoff."""
    if asked_for_s is not None:
        return min(max(asked_for_s, 0.0), MAX_RETRY_AFTER_S)
    return min(2.0 ** (failures - 1), MAX_PAUSE_S)


def retry_after_s(value: str | None) -> float | None:
    """Return the header's seconds; None without it, or for a date, since clocks may differ."""
    seconds = _count(value)
    return None if seconds is None else float(seconds)


def _count(value: str | None) -> int | None:
    """Return a header's number; None if it is missing, malformed or has over 18 digits."""
    return int(value) if value is not None and _COUNT.fullmatch(value.strip()) else None


def _check_status(file: SourceFile, response: requests.Response, position: int) -> None:
    status = response.status_code
    if status in TRANSIENT_STATUSES:
        raise TransientError(f"it answered {status}", retry_after_s(response.headers.get("Retry-After")))
    if status in (401, 403):
        raise DownloadError(
            f"{file.url} answered {status}: access denied. For the Hugging Face hub, give the step the secret HF_TOKEN "
            "of a user who has accepted the terms."
        )
    if status not in (200, 206):
        raise DownloadError(f"{file.url} answered {status}: is it there?")
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise DownloadError(f"{file.url} came in the encoding {single_line(encoding)!r}, but identity was requested.")
    if status == 206:
        content_range = response.headers.get("Content-Range", "")
        match = _RANGE.fullmatch(content_range)
        if match is None or int(match[1]) != position:
            raise TransientError(f"it should begin at byte {position:,}, and gave {single_line(content_range)!r}")


def _check_same(file: SourceFile, response: requests.Response, position: int, known: _Answer) -> int:
    """Return how many bytes to skip: all read so far, if the server sends the whole file again."""
    is_rest = response.status_code == 206
    length = _count(response.headers.get("Content-Length"))
    size = None if length is None else length + (position if is_rest else 0)
    version = response.headers.get("ETag") or response.headers.get("Last-Modified")
    is_other_size = None not in (size, known.size) and size != known.size
    if is_other_size and file.is_checked:  # such as the page of a proxy
        raise DamagedDownloadError(f"{file.url} has {size:,} bytes, and should have {known.size:,}.")
    may_be_another = position > 0 and not file.is_checked and (version is None or version != known.version)
    if may_be_another or is_other_size:
        raise DownloadError(
            f"{file.url} has {size} bytes and version {single_line(version)}, and had {known.size} and "
            f"{single_line(known.version)}: it may be another file than at first. Give its sha256, or an address whose "
            "file does not change."
        )
    known.size, known.version = known.size if size is None else size, version
    return 0 if is_rest else position


def _without_query(error: Exception) -> str:
    """Return the message without queries: a signed address grants access to its file."""
    return single_line(_QUERY.sub("?...", str(error)))
