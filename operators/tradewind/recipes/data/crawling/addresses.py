"""Addresses that a crawl may request: their one spelling, and networks that are public.

A name is judged by the addresses that it resolves to, when the connection is made; here only its form is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit

from tradewind.recipes.data.crawling.robots import normalized_escapes

MAX_ADDRESS_CHARS: Final = 8192
_PORTS: Final = {"http": 80, "https": 443}
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_PUBLIC_6: Final = ipaddress.ip_network("2000::/3")
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20",
    )
)  # fmt: skip
"""Protocols, relays and tunnels to any IPv4 address, and documentation: not in all versions of ``is_global``."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


class AddressError(ValueError):
    """An address that is not requested; ``reason`` is a word for its outcome."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


@dataclass(frozen=True)
class Address:
    """An address in its one spelling.

    Attributes:
        scheme: ``http`` or ``https``.
        host: A name in lower case and ASCII, or an IP address.
        port: Its port.
        target: Path and query.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        """``https://host``, with a port that is not the scheme's."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    @property
    def group(self) -> str:
        """The host whose requests keep a distance; ``www.`` is the same host."""
        return self.host.removeprefix("www.")

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


def parse_address(given: object, base: Address | None = None) -> Address:
    """Return an address in its one spelling; ``base`` is the one that redirects to it.

    Raises:
        AddressError: It is none that can be requested.
    """
    if not isinstance(given, str) or not given.strip():
        raise AddressError("invalid", "it is no text")
    text = given.strip()
    if len(text) > MAX_ADDRESS_CHARS:
        raise AddressError("invalid", f"it has more than {MAX_ADDRESS_CHARS:,} characters")
    if _FORBIDDEN.search(text):
        raise AddressError("invalid", "it has a control character or a backslash")
    try:
        text.encode("utf-8", "surrogateescape")  # half of a character has no escape
        parts = urlsplit(urljoin(str(base), text) if base is not None else text)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError as error:
        raise AddressError("invalid", str(error)) from error
    if scheme not in _PORTS:
        raise AddressError("scheme", "only http and https are requested")
    if "@" in parts.netloc:
        raise AddressError("userinfo", "it has a user name or password")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(scheme, _host(host, "[" in parts.netloc), _PORTS[scheme] if port is None else port, _target(target))


def check_port(address: Address, allowed: Collection[int]) -> None:
    """Refuse a port that is not allowed.

    Raises:
        AddressError: It is not.
    """
    if address.port not in allowed:
        raise AddressError("port", f"port {address.port} is not in allow_ports")


def check_ip(text: str, allowed: Networks) -> IpAddress:
    """Return an IP address that is public or allowed.

    Raises:
        AddressError: It is neither.
    """
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    if not any(address in network for network in allowed) and (mapped is not None or not _is_public(address)):
        raise AddressError("private_network", f"{address} is not public, and not in allow_networks")
    return address


def _is_public(address: IpAddress) -> bool:
    is_excluded = any(address in network for network in _NOT_PUBLIC) or address.is_multicast or address.is_reserved
    return address.is_global and not is_excluded and (address.version == 4 or address in _PUBLIC_6)


def literal_ip(host: str) -> IpAddress | None:
    """Return the IP address that a host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _host(host: str, is_bracketed: bool) -> str:
    """Return a host in lower case and ASCII; only ``192.0.2.1`` and ``[2001:db8::1]`` are numbers."""
    if is_bracketed:
        address = literal_ip(host)
        if address is None or address.version == 4 or "%" in host:
            raise AddressError("invalid", "its host is no IPv6 address")
        return str(address)
    name = host.removesuffix(".")
    if not name.isascii():
        import idna

        try:
            name = idna.encode(name, uts46=True).decode("ascii")
        except idna.IDNAError as error:
            raise AddressError("invalid", "its host is no name") from error
    name = name.lower()
    labels = name.split(".")
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressError("invalid", "its host is no name")
    if _NUMBER.fullmatch(labels[-1]) and literal_ip(name) is None:
        raise AddressError("invalid", "its host is a number: only 192.0.2.1 is a form of it")
    return name


def _target(target: str) -> str:
    """Return path and query without segments of dots, as servers read them."""
    path, question, query = normalized_escapes(target).partition("?")
    segments: list[str] = []
    parts = path.split("/")[1:]
    for number, part in enumerate(parts):
        if part not in (".", ".."):
            segments.append(part)
            continue
        if part == ".." and segments:
            segments.pop()
        if number == len(parts) - 1:
            segments.append("")
    return "/" + "/".join(segments) + question + query
