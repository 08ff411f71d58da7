"""Run the step driver in a process that needs seconds to exit after its work."""

from __future__ import annotations

import sys
import time
from typing import Any

from tradewind.runtime.run_step import main


class Slow:
    """Sleep in the destructor, after Python has removed its signal handlers."""

    def __init__(self, sleep: Any) -> None:
        self.sleep = sleep

    def __del__(self) -> None:
        self.sleep(9.0)


if __name__ == "__main__":
    slow = Slow(time.sleep)
    sys.exit(main())
