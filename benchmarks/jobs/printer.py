"""``python printer.py LINES RATE``: the job of every measurement; prints numbered lines at a steady rate.

Each line says when it was printed, so that a reader of any log knows how long it was on its way. Standard library
only, because the cluster runs it as a plain script.
"""

from __future__ import annotations

import sys
import time

LINE = "bench-line {number:07d} {printed:.6f} {padding}"
PADDING = "." * 60


def main(lines: int, rate: float) -> None:
    """Print ``lines`` lines, ``rate`` in a second, and end when the last one's time is over."""
    started = time.monotonic()
    for number in range(lines):
        # Due by the clock of the start, so that what printing itself takes does not slow the rate down.
        if (early := started + number / rate - time.monotonic()) > 0:
            time.sleep(early)
        print(LINE.format(number=number, printed=time.time(), padding=PADDING), flush=True)
    time.sleep(max(0.0, started + lines / rate - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
