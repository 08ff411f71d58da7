"""The machine that a file is evaluated on, for the second of two evaluations another one.

The DAG file is parsed by the DAG processor and again by each task's worker, and Marin ran the file somewhere else.
"""

from __future__ import annotations

import getpass
import os
import platform
import socket
import types
from collections.abc import Callable
from typing import Any, Final

_SUFFIX: Final = "-other"


def other_machine() -> dict[types.ModuleType, dict[str, Any]]:
    """What of the real modules is another thing for the second evaluation."""
    return {
        os: {"cpu_count": _one_more(os.cpu_count), "listdir": lambda *path: os.listdir(*path)[::-1]},
        socket: {name: _other(getattr(socket, name)) for name in ("gethostname", "getfqdn")},
        platform: {"node": _other(platform.node)},
        getpass: {"getuser": _other(getpass.getuser)},
    }


def _other(function: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: function(*args) + _SUFFIX


def _one_more(function: Callable[[], int | None]) -> Callable[[], int]:
    return lambda: (function() or 0) + 1
