"""The variables that a cluster gives its processes from Secret Manager: each is a file on every host, for one user.

A host writes them when Ray is started there, and ``tradewind cluster push-env`` writes them anew. So a file is newer
than the variable of the same name that a process of Ray has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ENVIRONMENT_FOLDER: Final = ".tradewind/environment"
"""Below the home of Ray's user; the name of a file is that of its variable."""


def host_variable(name: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The value that this host's cluster gives to ``name``: that of its file, else that in ``env``."""
    try:
        return (Path.home() / ENVIRONMENT_FOLDER / name).read_text().rstrip("\n")
    except (OSError, ValueError):
        return env.get(name)
