"""Reads of slow services and stores, shared by all who ask: one at a time for each key, and a limit to every wait.

Each read runs in a daemon thread, so a service that does not answer takes no other thread. All callers with a key share
its read, and then the result or error for ``ttl_s``. A read that takes longer than they wait continues, and none with
the same key starts beside it. So a dead service costs one thread, and each caller one short wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from tradewind.text import format_duration, single_line

logger = logging.getLogger(__name__)

_MAX_PROBLEM_CHARS: Final = 600

T = TypeVar("T")
V = TypeVar("V")


class TooManyReadsError(Exception):
    """As many reads run as may run at once."""


@dataclass(frozen=True)
class Running(Generic[T]):
    """A read that has not ended.

    Attributes:
        seconds: Since it began.
        older: The last result; None if there is none, or if the last read failed.
    """

    seconds: float
    older: T | None = None


@dataclass(frozen=True)
class PollResult(Generic[T]):
    """What a read found.

    Attributes:
        value: The newest value; None if there is none, or if the newest read failed.
        problem: Why there is no value, or an old one; None if it is fresh.
    """

    value: T | None = None
    problem: str | None = None

    def map(self, of: Callable[[T], V]) -> PollResult[V]:
        """Return the same with ``of`` the value."""
        return PollResult(None if self.value is None else of(self.value), self.problem)


@dataclass
class _Read(Generic[T]):
    """A read with its times by the clock; ``before`` is what the last one found, while this one runs."""

    began: float
    before: tuple[PollResult[T], float] | None = None
    ended: float | None = None
    result: Future[T] = field(default_factory=Future)


class SharedReads(Generic[T]):
    """Results of reads by key; see the module.

    Args:
        ttl_s: How long after its end a result is shared.
        wait_s: How long callers wait.
        known_errors: Errors whose texts are for users and hold no secrets.
        max_running: Number of reads that may run at once.
        max_kept: Number of results that stay in memory, the newest.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        ttl_s: float,
        wait_s: float,
        known_errors: tuple[type[Exception], ...],
        max_running: float = math.inf,
        max_kept: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_s = ttl_s
        self._wait_s = wait_s
        self._known_errors = known_errors
        self._max_running = max_running
        self._max_kept = max_kept
        self._clock = clock
        self._lock = threading.Lock()
        self._reads: dict[Hashable, _Read[T]] = {}
        """Those that ended last come last."""

    def begin(self, key: Hashable, read: Callable[[], T], ttl_s: float | None = None) -> _Read[T]:
        """Return the read with this key; if there is none, or its result is too old, start one that calls ``read``.

        Raises:
            TooManyReadsError: Too many others run.
        """
        ttl_s = self._ttl_s if ttl_s is None else ttl_s
        with self._lock:
            known, now = self._reads.get(key), self._clock()
            if known is not None and (known.ended is None or now - known.ended < ttl_s):
                return known
            if sum(each.ended is None for each in self._reads.values()) >= self._max_running:
                raise TooManyReadsError
            before = None if known is None or known.ended is None else (self._found(known), known.ended)
            begun = self._reads[key] = _Read(now, before)
            begun.result.set_running_or_notify_cancel()  # so that no request which ends can cancel it for the others
            name = "-".join(map(str, key)) if isinstance(key, tuple) else str(key)
            threading.Thread(target=self._run, args=(key, begun, read), daemon=True, name=f"read {name}").start()
            return begun

    def results(
        self, reads: Mapping[Hashable, Callable[[], T]], *, ttl_s: float | None = None
    ) -> dict[Hashable, PollResult[T]]:
        """Return what the read of each key found; wait until ``wait_s`` after its start, then return the older value.

        Raises:
            TooManyReadsError: Too many others run.
        """
        begun = {key: self.begin(key, read, ttl_s) for key, read in reads.items()}
        for each in begun.values():
            concurrent.futures.wait([each.result], max(0.0, each.began + self._wait_s - self._clock()))
        return {key: self._found(each) for key, each in begun.items()}

    async def get(self, key: Hashable, read: Callable[[], T]) -> T | Running[T]:
        """Return the result of the read with this key, or after ``wait_s`` that it still runs.

        Raises:
            TooManyReadsError: Too many others run.
            Exception: What ``read`` raises.
        """
        begun = self.begin(key, read)
        older = None if begun.before is None else begun.before[0].value
        waited = asyncio.wrap_future(begun.result)
        done, _ = await asyncio.wait({waited}, timeout=self._wait_s)
        if done:
            return waited.result()
        # Each later request gets the error of the read, so one that no request awaits any more is not worth a warning.
        waited.add_done_callback(lambda over: None if over.cancelled() else over.exception())
        return Running(self._clock() - begun.began, older)

    def _found(self, read: _Read[T]) -> PollResult[T]:
        before = read.before  # first, as the end of the read removes it
        if not read.result.done():
            return self._older(before, read.began)
        error = read.result.exception()
        if error is None:
            return PollResult(read.result.result())
        if isinstance(error, self._known_errors):
            return PollResult(None, single_line(error, _MAX_PROBLEM_CHARS))
        return PollResult(None, f"It cannot be read ({type(error).__name__}): see the log of the API server.")

    def _older(self, before: tuple[PollResult[T], float] | None, began: float) -> PollResult[T]:
        now, (older, at) = self._clock(), before or (PollResult[T](), 0.0)
        problem = f"No answer for {format_duration(now - began)}"
        if older.value is not None:
            return PollResult(older.value, f"{problem}; this is {format_duration(now - at)} old.")
        return PollResult(None, f"{problem}." + (f" Before that: {older.problem}" if older.problem else ""))

    def _run(self, key: Hashable, own: _Read[T], read: Callable[[], T]) -> None:
        try:
            value = read()
        except BaseException as error:  # callers get it
            if not isinstance(error, self._known_errors):
                logger.exception("A read for pages failed.")
            self._end(key, own, partial(own.result.set_exception, error))
        else:
            self._end(key, own, partial(own.result.set_result, value))

    def _end(self, key: Hashable, own: _Read[T], tell: Callable[[], None]) -> None:
        with self._lock:
            own.ended, own.before = self._clock(), None
            self._reads[key] = self._reads.pop(key)
            ended = [each for each, other in self._reads.items() if other.ended is not None]
            while len(ended) > self._max_kept:
                del self._reads[ended.pop(0)]
            tell()
