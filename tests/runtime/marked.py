"""Finding the processes of a test by a variable in their environment."""

from __future__ import annotations

import psutil


def marked(variable: str, value: str) -> list[psutil.Process]:
    """The live processes whose environment has ``variable`` with this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(variable) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found
