"""Prints numbered lines at a steady rate: ``python -m printer LINES_PER_SECOND SECONDS``."""

import sys
import time


def main(rate: int, seconds: int) -> None:
    started, sent = time.monotonic(), 0
    while sent < rate * seconds:
        due = min(rate * seconds, int((time.monotonic() - started) * rate))
        sys.stdout.write("".join(f"line {number}\n" for number in range(sent, due)))
        sys.stdout.flush()
        sent = max(sent, due)
        time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
