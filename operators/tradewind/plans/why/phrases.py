"""How values, texts and ages read in one line: short, and cut in the middle so that both ends still tell something."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, Final

LONGEST_VALUE: Final = 40
_CONTEXT: Final = 12
_AGES: Final = ((86400, "day"), (3600, "hour"), (60, "minute"))


def shorten(text: str, longest: int) -> str:
    """``text`` on one line, with its middle left out if it is longer than that."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 3
    return f"{text[: longest - 1 - tail]}…{text[-tail:]}"


def value_text(value: Any) -> str:
    """A value of a version record as people write it."""
    return shorten(json.dumps(value, ensure_ascii=False, sort_keys=True), LONGEST_VALUE)


def change_text(old: Any, new: Any) -> str:
    """``old → new``; of long values that are alike at an end, the part around the difference."""
    before, after = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in (old, new))
    if max(len(before), len(after)) > LONGEST_VALUE:
        before, after = _without_common_ends(before, after)
    return f"{shorten(before, LONGEST_VALUE)} → {shorten(after, LONGEST_VALUE)}"


def count_text(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def age_text(seconds: float) -> str:
    """``3 days ago``, ``1 hour ago``, ``a moment ago``."""
    for size, unit in _AGES:
        count = int(seconds // size)
        if count >= 1:
            return f"{count_text(count, unit)} ago"
    return "a moment ago"


def time_text(timestamp: float) -> str:
    """A moment in UTC, to the minute."""
    return datetime.datetime.fromtimestamp(timestamp, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def producer_text(by: Mapping[str, Any]) -> str:
    """Who claimed a turn, or asked for its end: a run, a script, or what else the claim says; empty if nothing."""
    if by.get("run"):
        return f"run {by['run']} of {by['dag']}" if by.get("dag") else f"run {by['run']}"
    if by.get("script"):
        return f"script {by['script']}" + (f" on {by['host']}" if by.get("host") else "")
    return ", ".join(f"{key} {value}" for key, value in by.items() if isinstance(value, str) and value)


def _without_common_ends(before: str, after: str) -> tuple[str, str]:
    """Both texts without all but a little of what they begin and end with alike."""
    shorter = min(len(before), len(after))
    start = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    rest = shorter - start
    end = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    skipped, dropped = max(0, start - _CONTEXT), max(0, end - _CONTEXT)
    return _cut(before, skipped, dropped), _cut(after, skipped, dropped)


def _cut(text: str, skipped: int, dropped: int) -> str:
    middle = text[skipped : len(text) - dropped]
    return f"{'…' if skipped else ''}{middle}{'…' if dropped else ''}"
