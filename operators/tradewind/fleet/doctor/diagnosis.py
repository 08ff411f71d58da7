"""What a look at one thing shows: that it is well, or what is wrong and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """How it is."""

    WELL = "ok"
    WRONG = "WRONG"
    UNKNOWN = "unknown"
    """It could not be looked at."""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        about: What it is: a program, a bucket.
        found: How it was found, in words.
        mend: What to do, in a sentence; empty if it is well.
    """

    about: str
    health: Health
    found: str
    mend: str = ""


def well(about: str, found: str) -> Diagnosis:
    """It is as it should be."""
    return Diagnosis(about, Health.WELL, found)


def wrong(about: str, found: str, mend: str) -> Diagnosis:
    """It is not."""
    return Diagnosis(about, Health.WRONG, found, mend)


def unknown(about: str, why: str, mend: str = "") -> Diagnosis:
    """Nobody can say."""
    return Diagnosis(about, Health.UNKNOWN, why, mend)
