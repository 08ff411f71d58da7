"""Run the step driver with a fault.

Usage: ``python -m tests.runtime.faulty_driver FAULT FILE``. These faults replace a function of the driver:

- ``killed:MODULE:NAME``: its call kills the driver.
- ``frozen:MODULE:NAME``: its call freezes the driver first.
- ``writing:MODULE:NAME``: its call joins a thread that never stops writing, as fsspec joins its loop thread.

The fault ``slow`` makes Python sleep at its exit, after it has removed its signal handlers.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tradewind.runtime.run_step import main

INTERRUPTED = "The main thread was interrupted, and the writer was not."


def killed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def frozen(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    function(*args, **kwargs)


def writing(function: Callable[..., Any], output_path: str, *args: Any, **kwargs: Any) -> None:
    thread = threading.Thread(target=write_forever, args=[Path(output_path, "written")])
    thread.start()
    try:
        thread.join()
    except BaseException:
        print(INTERRUPTED, flush=True)
        raise


def write_forever(file: Path) -> None:
    while True:
        file.touch()
        time.sleep(0.01)


class SlowExit:
    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def __del__(self) -> None:
        self.sleep(9.0)


if __name__ == "__main__":
    fault, _, reference = sys.argv.pop(1).partition(":")
    slow = SlowExit(time.sleep) if fault == "slow" else None
    if reference:
        module, _, name = reference.partition(":")
        owner = importlib.import_module(module)
        act = {"killed": killed, "frozen": frozen, "writing": writing}[fault]
        function = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: act(function, *args, **kwargs))
    sys.exit(main())
