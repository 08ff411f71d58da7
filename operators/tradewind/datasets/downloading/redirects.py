"""Where a server may send on to: never to what only this machine, or only its cloud, should be asked for.

Whoever answers at an address decides where the answer comes from. A machine in a cloud has an address that tells its
own credentials (``169.254.169.254``), and servers of its own on its loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from tradewind.datasets.downloading.source import DownloadError
from tradewind.datasets.one_line import in_a_line

if TYPE_CHECKING:
    import requests

_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "instance-data", "metadata.azure.internal"})
"""Servers of clouds that tell a machine about itself."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RefusedRedirectError(DownloadError):
    """A server sends on to a place that no server of the network may have read."""


def guarded_session() -> requests.Session:
    """A session whose redirects are checked before they are followed."""
    import requests

    class Guarded(requests.Session):
        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            if target is not None:
                check_sent_on(resp.url, urljoin(resp.url, target))
            return target

    return Guarded()


def check_sent_on(url: str, target: str) -> None:
    """Refuse what the server at ``url`` may not send on to.

    Raises:
        RefusedRedirectError: ``target`` is not encrypted as ``url`` is, or is of this machine or of its cloud alone.
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


def _refused(url: str, host: str, why: str) -> RefusedRedirectError:
    return RefusedRedirectError(
        f"{url.partition('?')[0]} sends on to {in_a_line(host)!r}, {why}: that was not followed. Give another address."
    )
