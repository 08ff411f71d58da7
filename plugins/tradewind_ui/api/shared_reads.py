"""Reads of a store that take seconds, for paths that users choose: one read for all requests that want the same.

A read runs in a daemon thread of its own and ends by its own limits, while requests wait in the event loop. So a store
that does not answer takes none of the threads that Airflow's own requests need. A request waits some seconds and then
learns how long the read has been running. Results are shared for a while; the newest few stay in memory.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

WAIT_S: Final = 5.0
TTL_S: Final = 30.0
HUNG_S: Final = 240.0
"""Seconds after which a read counts as one that the store does not answer."""
MAX_RUNNING: Final = 4
MAX_KEPT: Final = 4

Value = TypeVar("Value")


class TooManyReadsError(Exception):
    """As many reads run as may run at once."""


class HungReadError(Exception):
    """The store has not answered a read for ``HUNG_S``."""


@dataclass(frozen=True)
class Running:
    """A read that has not ended.

    Attributes:
        seconds: Since it began.
    """

    seconds: float


@dataclass
class _Read(Generic[Value]):
    result: Future[Value]
    began: float
    ended: float | None = None


class SharedReads(Generic[Value]):
    """Results of reads by key; see the module.

    Args:
        wait_s: How long a request waits for a read.
        ttl_s: How long after its end a result is shared.
    """

    def __init__(self, *, wait_s: float = WAIT_S, ttl_s: float = TTL_S) -> None:
        self._wait_s = wait_s
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._reads: OrderedDict[Hashable, _Read[Value]] = OrderedDict()

    async def get(self, key: Hashable, read: Callable[[], Value]) -> Value | Running:
        """Return what ``read`` returns, now or to an earlier request of this key, or that it still runs.

        Raises:
            TooManyReadsError: Too many others run.
            HungReadError: It has been running for so long that the store seems not to answer.
            Exception: What ``read`` raises.
        """
        known = self._begin(key, read)
        waited = asyncio.wrap_future(known.result)
        done, _ = await asyncio.wait({waited}, timeout=self._wait_s)
        if done:
            return waited.result()
        # An error that nothing awaits any more is not worth a warning: the next request begins a new read.
        waited.add_done_callback(lambda over: None if over.cancelled() else over.exception())
        seconds = time.monotonic() - known.began
        if seconds > HUNG_S:
            raise HungReadError
        return Running(seconds)

    def _begin(self, key: Hashable, read: Callable[[], Value]) -> _Read[Value]:
        with self._lock:
            known = self._reads.get(key)
            now = time.monotonic()
            if known is not None and (known.ended is None or now - known.ended < self._ttl_s):
                self._reads.move_to_end(key)
                return known
            if sum(each.ended is None for each in self._reads.values()) >= MAX_RUNNING:
                raise TooManyReadsError
            known = self._reads[key] = _Read(Future(), now)
            self._reads.move_to_end(key)
            threading.Thread(target=self._run, args=(key, known, read), daemon=True, name="tradewind-read").start()
            return known

    def _run(self, key: Hashable, known: _Read[Value], read: Callable[[], Value]) -> None:
        try:
            value = read()
        except BaseException as error:  # each request that waits raises it
            with self._lock:
                del self._reads[key]
            known.result.set_exception(error)
            return
        with self._lock:
            known.ended = time.monotonic()
            ended = [each for each, other in self._reads.items() if other.ended is not None]
            for old in ended[:-MAX_KEPT]:
                del self._reads[old]
        known.result.set_result(value)
