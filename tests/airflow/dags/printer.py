"""Print lines until a file exists, then their count: ``python -m printer LINES_PER_SECOND MAX_SECONDS FILE``."""

import os
import sys
import time


def main(rate: int, most_seconds: int, end: str) -> None:
    started, sent = time.monotonic(), 0
    while sent < rate * most_seconds and not os.path.exists(end):
        due = min(rate * most_seconds, int((time.monotonic() - started) * rate))
        sys.stdout.write("".join(f"line {number}\n" for number in range(sent, due)))
        sys.stdout.flush()
        sent = max(sent, due)
        time.sleep(0.02)
    print(f"printed {sent} lines", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
