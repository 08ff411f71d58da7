"""Lines in the log of an evaluation: how many requests are answered, how fast, and whether it is paused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tradewind.serving.gateway import Gateway, Traffic
from tradewind.text import format_duration

SECONDS_PER_LINE: Final = 15.0


class Progress:
    """Prints a line every few seconds while its block runs, if anything has changed.

    Args:
        gateway: What counts the requests.
        about: Number of requests to expect.
        log: Prints a line.
    """

    def __init__(self, gateway: Gateway | None, about: int, log: Callable[[str], None]) -> None:
        self._gateway = gateway
        self._about = about
        self._log = log
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        if self._gateway is None:
            return
        began, before = time.monotonic(), self._gateway.traffic
        first = before
        while not self._ended.wait(SECONDS_PER_LINE):
            now, pause_s = self._gateway.traffic, self._gateway.pause_s
            if now != before or pause_s:
                self._log(progress_line(first, now, self._about, time.monotonic() - began, pause_s))
            before = now


def progress_line(first: Traffic, now: Traffic, about: int, seconds: float, pause_s: float) -> str:
    """``120 of about 400 requests answered (20 in an earlier attempt), 3,200 tokens/s, 2 min left``."""
    done = now.answered + now.errors
    asked = done - now.cached - (first.answered + first.errors - first.cached)
    busy = max(seconds - (now.paused_s - first.paused_s), 1e-3)
    parts = [f"{done:,} of about {max(about, done):,} requests answered"]
    parts[0] += f" ({now.cached:,} in an earlier attempt)" if now.cached else ""
    parts += [f"{now.errors:,} refused"] if now.errors else []
    if pause_s:
        return ", ".join([*parts, f"paused for {format_duration(pause_s)}, since the server is lost"])
    if (tokens := _tokens(now) - _tokens(first)) > 0:
        parts.append(f"{tokens / busy:,.0f} tokens/s")
    if asked > 0 and about > done:
        parts.append(f"about {format_duration((about - done) * busy / asked)} left")
    return ", ".join(parts)


def _tokens(traffic: Traffic) -> int:
    return (traffic.prompt_tokens or 0) + (traffic.completion_tokens or 0)
