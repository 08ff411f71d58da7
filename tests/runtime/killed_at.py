"""Run the step driver, killed when it calls one function.

Usage: ``python -m tests.runtime.killed_at MODULE:NAME FILE``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from tradewind.runtime.run_step import main


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    module, _, name = sys.argv.pop(1).partition(":")
    setattr(importlib.import_module(module), name, kill)
    sys.exit(main())
