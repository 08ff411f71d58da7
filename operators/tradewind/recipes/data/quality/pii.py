"""Mask e-mail addresses, public IP addresses and telephone numbers in a text, in linear time."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

from tradewind.recipes.data.quality.filter_rules import Rule

_EMAIL: Final = r"[A-Za-z0-9_%+-]+(?:\.[A-Za-z0-9_%+-]+)*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,24}"
_IPV4: Final = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_IPV6: Final = r"[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}"
_PHONE: Final = (
    r"\+[1-9][0-9]{0,2}(?:[ .-]?\(?[0-9]{1,4}\)?){2,6}"  # +49 30 1234567
    r"|(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[.-][0-9]{4}"  # (212) 555-0123
)
_MIN_DIGITS, _MAX_DIGITS = 9, 15


@dataclass(frozen=True)
class MaskPii(Rule):
    """Replace addresses and telephone numbers; no text is refused.

    An IP address is masked if it is public, and a telephone number if it begins with ``+`` and a country, or is written
    as in North America with separators. Texts in place of these are not masked again.

    Attributes:
        email: In place of e-mail addresses.
        ip: In place of IP addresses, by default one that is reserved for documents.
        phone: In place of telephone numbers.
    """

    name: ClassVar[str] = "mask_pii"
    email: str = "email@example.com"
    ip: str = "192.0.2.1"
    phone: str = "555-0100"

    def edit(self, text: str) -> tuple[str, dict[str, int]]:
        return mask_pii(text, self)


def mask_pii(text: str, config: MaskPii | None = None) -> tuple[str, dict[str, int]]:
    """Return the text with masks, and how many there are of each kind: ``emails``, ``ips``, ``phones``."""
    config = config or MaskPii()
    kinds: tuple[tuple[str, str, str, str, Callable[[str], bool]], ...] = (
        ("emails", "@", _EMAIL, config.email, lambda found: found != config.email),
        ("ips", ".:", f"{_IPV4}|{_IPV6}", config.ip, _is_public),
        ("phones", "+-.", _PHONE, config.phone, _is_phone),
    )
    counts: dict[str, int] = {}
    data = text.encode("utf-8", "surrogatepass")  # half of a character is no reason to fail
    for name, signs, pattern, mask, fits in kinds:
        counts[name] = 0
        if any(sign in text for sign in signs):
            data, counts[name] = _replaced(data, pattern, mask.encode("utf-8", "surrogatepass"), fits)
    return data.decode("utf-8", "surrogatepass") if any(counts.values()) else text, counts


@cache
def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes, of which the patterns have only ASCII
    return re2.compile(pattern.encode(), options)


def _replaced(data: bytes, pattern: str, mask: bytes, fits: Callable[[str], bool]) -> tuple[bytes, int]:
    parts: list[bytes] = []
    after = 0
    for start, end in _found(data, pattern):
        if fits(data[start:end].decode()):
            parts += [data[after:start], mask]
            after = end
    return b"".join([*parts, data[after:]]) if parts else data, len(parts) // 2


def _found(data: bytes, pattern: str) -> Iterator[tuple[int, int]]:
    """Yield where the pattern matches and is no part of a longer word or number."""
    for match in _compiled(pattern).finditer(data):
        start, end = match.span()
        before, after = data[max(start - 2, 0) : start], data[end : end + 2]
        in_word = before[-1:].isalnum() or after[:1].isalnum() or b"_" in (before[-1:], after[:1])
        in_number = (_is_in_number(before) and data[start : start + 1].isdigit()) or (
            after[:1] == b"." and after[1:].isdigit() and data[end - 1 : end].isdigit()
        )
        if not in_word and not in_number:
            yield start, end


def _is_in_number(before: bytes) -> bool:
    return before[:1].isdigit() and before[1:] in (b".", b":")


def _is_public(found: str) -> bool:
    try:
        return ipaddress.ip_address(found).is_global
    except ValueError:
        return False


def _is_phone(found: str) -> bool:
    digits = sum(map(str.isdigit, found))
    return _MIN_DIGITS <= digits <= _MAX_DIGITS
