"""The step driver, in a process that takes seconds to leave once its work is done."""

from __future__ import annotations

import sys
import time
from typing import Any

from tradewind.runtime.run_step import main


class Slow:
    """Goes when Python has put its handlers of signals away."""

    def __init__(self, sleep: Any) -> None:
        self.sleep = sleep

    def __del__(self) -> None:
        self.sleep(9.0)


if __name__ == "__main__":
    slow = Slow(time.sleep)
    sys.exit(main())
