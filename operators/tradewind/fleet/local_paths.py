"""Local paths: expansion of ``~`` in paths that users write, and the folder of this user's records."""

from __future__ import annotations

import os
from pathlib import Path

from tradewind.fleet.errors import FleetError


class BadPathError(FleetError):
    """A given path is invalid on this machine."""


def expanded(text: str | Path, source: str) -> Path:
    """Return the path with ``~`` expanded.

    Args:
        source: Origin of the path, for the message: an option, a variable, a field.

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
    """Return the folder of this user's records: ``$XDG_STATE_HOME/tradewind``, else ``~/.local/state/tradewind``."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "tradewind"
