"""Paths on this machine: as people write them, with ``~``, and where what is kept of them lies."""

from __future__ import annotations

import os
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


def state_folder() -> Path:
    """Where this user's own records are: ``$XDG_STATE_HOME/tradewind``, else ``~/.local/state/tradewind``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "tradewind"
