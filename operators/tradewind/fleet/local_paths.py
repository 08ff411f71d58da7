"""Paths on this machine as people write them, with ``~``: a home that nobody has is told by where it stands."""

from __future__ import annotations

from pathlib import Path

from tradewind.fleet.errors import FleetError


class BadPathError(FleetError):
    """What was given as a path leads nowhere on this machine."""


def expanded(text: str | Path, source: str) -> Path:
    """The path with the home that ``~`` stands for.

    Args:
        source: Where it was given, for the message: an option, a variable, a field.

    Raises:
        BadPathError: This machine does not know that home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        raise BadPathError(
            f"{source} {text}: this machine does not know whose home {user} is: write the whole path."
        ) from None
