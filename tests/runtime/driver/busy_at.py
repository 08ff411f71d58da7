"""Run the step driver with a thread that never stops writing.

Usage: ``python -m tests.runtime.driver.busy_at MODULE:NAME FILE``. The script replaces the function
``MODULE:NAME``: the call starts the thread and joins it, as an fsspec call waits for its loop thread.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from pathlib import Path

from tradewind.runtime.run_step import main

GOES_ON = "The main thread goes on, and the other one too."


def write_for_ever(output_path: str) -> None:
    while True:
        Path(output_path, "written").touch()
        time.sleep(0.01)


def wait_for_it(output_path: str, *args: object, **kwargs: object) -> None:
    thread = threading.Thread(target=write_for_ever, args=[output_path])
    thread.start()
    try:
        thread.join()
    except BaseException:
        print(GOES_ON, flush=True)
        raise


if __name__ == "__main__":
    module, _, name = sys.argv.pop(1).partition(":")
    setattr(importlib.import_module(module), name, wait_for_it)
    sys.exit(main())
