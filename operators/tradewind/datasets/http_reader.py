"""A file over HTTP, read from its first byte to its last however often the connection breaks (RFC 9110, ranges)."""

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

from tradewind.datasets.source_files import DownloadError, SourceFile
from tradewind.text import single_line

if TYPE_CHECKING:
    import requests

# Where a server may send on to: never to what only this machine, or only its cloud, should be asked for.
#
# Whoever answers at an address decides where the answer comes from. A machine in a cloud has an address that tells its
# own credentials (``169.254.169.254``), and servers of its own on its loopback.

_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "instance-data", "metadata.azure.internal"})
"""Servers of clouds that tell a machine about itself."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def guarded_session() -> requests.Session:
    """A session whose redirects are checked before they are followed."""
    import requests

    class Guarded(requests.Session):
        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            if target is not None:
                check_redirect(resp.url, urljoin(resp.url, target))
            return target

    return Guarded()


def check_redirect(url: str, target: str) -> None:
    """Refuse what the server at ``url`` may not send on to.

    Raises:
        DownloadError: ``target`` is not encrypted as ``url`` is, or is of this machine or of its cloud alone.
        ValueError: It is no address.
    """
    given, parts = urlsplit(url), urlsplit(target)
    host = (parts.hostname or "").rstrip(".").lower()
    if given.scheme == "https" and parts.scheme != "https":
        raise _refused(url, host, "whose scheme is not https")
    if host in _METADATA_NAMES:
        raise _refused(url, host, "which tells a machine of a cloud its credentials")
    addresses = _addresses(host)
    if any(each.is_link_local for each in addresses):
        raise _refused(url, host, "which is of this machine's own network alone")
    is_here = any(each.is_loopback or each.is_unspecified for each in addresses)
    if is_here and not any(each.is_loopback for each in _addresses(given.hostname or "")):
        raise _refused(url, host, "which is this machine itself")


def _addresses(host: str) -> list[_Address]:
    """Those of a name; none where only a proxy knows it."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)} if host else set()
    except (OSError, UnicodeError):
        return []
    return [_plain(ipaddress.ip_address(str(each).partition("%")[0])) for each in found]


def _plain(address: _Address) -> _Address:
    """The IPv4 address, where it is only written as one of IPv6."""
    return getattr(address, "ipv4_mapped", None) or address


def _refused(url: str, host: str, why: str) -> DownloadError:
    return DownloadError(
        f"{url.partition('?')[0]} sends on to {single_line(host)!r}, {why}: that was not followed. Give another "
        "address."
    )


CHUNK_BYTES: Final = 256 * 1024
"""Read at a time; of a chunk that a broken connection leaves incomplete, nothing is kept."""
MAX_FAILURES: Final = 8
"""In a row, without a byte in between; together with the pauses some three minutes."""
MAX_PAUSE_S: Final = 60.0
MAX_RETRY_AFTER_S: Final = 300.0
"""What a server may ask for in ``Retry-After``."""
_TIMEOUT_S: Final = (15.0, 60.0)
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_QUERY: Final = re.compile(r"\?[^\s'\")]+")
_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_COUNT: Final = re.compile(r"\d{1,18}", re.ASCII)


class TransientError(Exception):
    """What may be over in a while; with how long the server wants to be left alone, if it said so."""

    def __init__(self, problem: str, pause_s: float | None = None) -> None:
        super().__init__(problem)
        self.pause_s = pause_s


@dataclass
class _Answer:
    """What the answers to one reading have in common."""

    size: int | None
    version: str | None = None
    """The ``ETag``, or else when the file was last changed."""


class HttpReader:
    """Reads files; one for many threads.

    Args:
        headers: Sent with every request to ``host``, and to no other: they may hold a token.
        pause: Waits for so many seconds.
    """

    def __init__(
        self, headers: Mapping[str, str] | None = None, host: str = "", pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._headers = dict(headers or {})
        self._host = host
        self._pause = pause
        self._sessions = threading.local()
        """One a thread: they are for one thread, and keep its connection from file to file."""

    def read(self, file: SourceFile) -> Iterator[bytes]:
        """The bytes of the file; after a break from the byte on at which it came.

        Raises:
            DownloadError: It cannot be had, or is another one than at the start.
        """
        known = _Answer(file.size_bytes)
        position = failures = 0
        while True:
            try:
                for chunk in self._from(position, file, known):
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

    def _from(self, position: int, file: SourceFile, known: _Answer) -> Iterator[bytes]:
        import requests

        headers = {"Accept-Encoding": "identity"}  # sizes and ranges are those of the file
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
        except (requests.RequestException, ValueError) as error:  # an address that cannot be parsed is the latter
            raise DownloadError(f"{file.url} cannot be read: {_without_query(error)}") from None

    def _session(self) -> requests.Session:
        if not hasattr(self._sessions, "own"):
            self._sessions.own = guarded_session()
        session: requests.Session = self._sessions.own
        return session


def pause_s(failures: int, asked_for_s: float | None) -> float:
    """How long to wait after so many failures in a row: as long as the server asks for, else longer and longer."""
    if asked_for_s is not None:
        return min(max(asked_for_s, 0.0), MAX_RETRY_AFTER_S)
    return min(2.0 ** (failures - 1), MAX_PAUSE_S)


def retry_after_s(value: str | None) -> float | None:
    """The header's seconds; None if it is not there or a date, which clocks may differ about."""
    seconds = _count(value)
    return None if seconds is None else float(seconds)


def _count(value: str | None) -> int | None:
    """A header's number; None if it is not there, is none, or is larger than anything that is counted."""
    return int(value) if value is not None and _COUNT.fullmatch(value.strip()) else None


def _check_status(file: SourceFile, response: requests.Response, position: int) -> None:
    status = response.status_code
    if status in TRANSIENT_STATUSES:
        raise TransientError(f"it answered {status}", retry_after_s(response.headers.get("Retry-After")))
    if status in (401, 403):
        raise DownloadError(
            f"{file.url} answered {status}: whoever reads it needs leave. For the Hugging Face hub, give the step the "
            "secret HF_TOKEN, of somebody who has accepted the terms."
        )
    if status not in (200, 206):
        raise DownloadError(f"{file.url} answered {status}: is it there?")
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise DownloadError(f"{file.url} came in the encoding {single_line(encoding)!r}, and was asked for as it is.")
    if status == 206:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != position:
            told = single_line(response.headers.get("Content-Range"))
            raise TransientError(f"it was asked for what begins at byte {position:,}, and gave {told!r}")


def _check_same(file: SourceFile, response: requests.Response, position: int, known: _Answer) -> int:
    """How many bytes to leave out at the beginning: all that came before, if the server gives the whole file again."""
    is_rest = response.status_code == 206
    length = _count(response.headers.get("Content-Length"))
    size = None if length is None else length + (position if is_rest else 0)
    version = response.headers.get("ETag") or response.headers.get("Last-Modified")
    may_be_another = position > 0 and not file.is_checked and (version is None or version != known.version)
    if may_be_another or (None not in (size, known.size) and size != known.size):
        raise DownloadError(
            f"{file.url} has {size} bytes and the version {single_line(version)}, and had {known.size} and "
            f"{single_line(known.version)}: it may be another file than at first. Give its sha256, or an address whose "
            "file does not change."
        )
    known.size, known.version = known.size if size is None else size, version
    return 0 if is_rest else position


def _without_query(error: Exception) -> str:
    """An address that the hub sends on to is signed: whoever has it may read the file for a while."""
    return single_line(_QUERY.sub("?...", str(error)))
