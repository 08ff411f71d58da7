"""Rules of a ``robots.txt`` for one crawler, as RFC 9309 says: groups by product token, and the longest match wins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

MAX_ROBOTS_BYTES: Final = 500 * 1024
"""What is read of a file; its rules after that do not count."""
_TOKEN: Final = re.compile(r"[A-Za-z_-]+|\*")
_LINE: Final = re.compile(r"\r\n|\r|\n")
_DELAY: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")
_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_KEPT: Final = "%/?:@!$&'()*+,;=-._~"
"""Characters that stay as they are; ``#`` ends an address."""


@dataclass(frozen=True)
class Robots:
    """What a host allows.

    Attributes:
        rules: Pattern and whether it allows, the longest first, of equal ones the one that allows.
        delay_s: ``Crawl-delay``; None without it.
    """

    rules: tuple[tuple[str, bool], ...] = ()
    delay_s: float | None = None

    def allows(self, target: str) -> bool:
        """Whether the crawler may request ``target``, a path with its query."""
        if target == "/robots.txt":
            return True
        target = _comparable(target).replace("*", "%2A").replace("$", "%24")
        return next((allows for pattern, allows in self.rules if _matches(pattern, target)), True)


ALLOW_ALL: Final = Robots()


def parse_robots(content: bytes, product: str) -> Robots:
    """Return the rules for the crawler with this product token, else those for all crawlers."""
    groups: dict[str, list[tuple[str, str]]] = {}
    agents: set[str] = set()
    is_open = False
    for name, value in _lines(content):
        if name == "user-agent":
            agents = agents if is_open else set()
            is_open = True
            if (token := _token(value)) in (product.lower(), "*"):
                agents.add(token)
                groups.setdefault(token, [])
            continue
        if name in ("allow", "disallow"):
            is_open = False
        for agent in agents:
            groups[agent].append((name, value))
    lines = groups.get(product.lower(), groups.get("*", []))
    rules = {value: name == "allow" for name, value in sorted(_rules(lines), reverse=True)}  # "allow" is the last
    ordered = sorted(rules.items(), key=lambda rule: (-len(rule[0]), not rule[1]))
    delays = [float(value) for name, value in lines if name == "crawl-delay" and _DELAY.fullmatch(value)]
    return Robots(tuple(ordered), max(delays, default=None))


def _lines(content: bytes) -> Iterator[tuple[str, str]]:
    text = content[:MAX_ROBOTS_BYTES].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    for line in _LINE.split(text):
        name, colon, value = line.partition("#")[0].partition(":")
        if colon:
            yield name.strip().lower(), value.strip()


def _token(value: str) -> str:
    found = _TOKEN.match(value)
    return found[0].lower() if found else ""


def _rules(lines: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield rules whose pattern begins a path; an empty one matches nothing."""
    for name, value in lines:
        if name in ("allow", "disallow") and value.startswith(("/", "*")):
            yield name, re.sub(r"\*+", "*", _comparable(value))


def _matches(pattern: str, target: str) -> bool:
    """Whether the texts between wildcards occur in this order: first at the beginning, one before ``$`` at the end."""
    if len(pattern) - pattern.count("*") > len(target) + 1:
        return False
    is_whole = pattern.endswith("$")
    first, *others = pattern.removesuffix("$").split("*")
    first = first.replace("$", "%24")
    if not target.startswith(first):
        return False
    if not others:
        return not is_whole or target == first
    at = len(first)
    *middle, last = (each.replace("$", "%24") for each in others)
    for part in middle if is_whole else (*middle, last):
        at = target.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return not is_whole or (len(target) - at >= len(last) and target.endswith(last))


def _comparable(target: str) -> str:
    """Return a path or a pattern in the spelling in which both are compared."""
    path, question, query = normalized_escapes(target).partition("?")
    return path + question + query.replace("%3A", ":").replace("%2F", "/")


def normalized_escapes(target: str) -> str:
    """Return a path and query in one spelling: what needs no escape has none, and all else has one."""

    def shown(found: re.Match[str]) -> str:
        sign = chr(int(found[1], 16))
        return sign if sign in _UNRESERVED else found[0].upper()

    target = re.sub("%(?![0-9A-Fa-f]{2})", "%25", target)
    return quote(_ESCAPE.sub(shown, target), safe=_KEPT, errors="surrogateescape")
