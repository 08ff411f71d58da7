"""Polls of slow services, shared by all who ask: one call at a time for each, and a limit to every wait.

Each poll runs in a daemon thread. Calls for the same key within ``ttl_s`` share its result. A call waits for a poll at
most until ``wait_s`` after the poll's start; a poll that takes longer continues, no second one starts beside it, and
the callers get its last result with its age. So a dead service costs one thread, and each viewer one short wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from tradewind.cloud_tpu.errors import TpuApiError
from tradewind.cloud_tpu.repair.records import SliceRecordError
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.storage import StorageError
from tradewind.text import format_duration, single_line

logger = logging.getLogger(__name__)

TTL_S: Final = 15.0
WAIT_S: Final = 4.0
_KNOWN_ERRORS: Final = (FleetError, RayJobsError, StorageError, TpuApiError, SliceRecordError)
"""Errors whose texts are for users and hold no secrets."""
_MAX_PROBLEM_CHARS: Final = 600

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True)
class PollResult(Generic[T]):
    """Result of a poll.

    Attributes:
        value: The newest value; None if there is none, or if the newest poll failed.
        problem: Why there is no value, or an old one; None if it is fresh.
    """

    value: T | None = None
    problem: str | None = None

    def map(self, of: Callable[[T], V]) -> PollResult[V]:
        """Return the same with ``of`` the value."""
        return PollResult(None if self.value is None else of(self.value), self.problem)


@dataclass
class _Poll:
    """State of the polls with one key. Times are those of the clock."""

    value: Any = None
    problem: str | None = None
    valued_at: float = 0.0
    began_at: float = 0.0
    ended_at: float | None = None
    is_running: bool = field(default=False)


class SharedPolls:
    """Results of polls by key; see the module.

    Args:
        ttl_s: How long a result is shared.
        wait_s: How long after the start of a poll its callers wait.
        clock: Monotonic seconds.
    """

    def __init__(
        self, *, ttl_s: float = TTL_S, wait_s: float = WAIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl_s = ttl_s
        self._wait_s = wait_s
        self._clock = clock
        self._changed = threading.Condition()
        self._polls: dict[Hashable, _Poll] = {}

    def begin(self, reads: Mapping[Hashable, Callable[[], Any]], *, ttl_s: float | None = None) -> None:
        """Start a poll for each key, which calls its function, where the last one is too old. Wait for none."""
        ttl_s = self._ttl_s if ttl_s is None else ttl_s
        with self._changed:
            for key, read in reads.items():
                poll = self._polls.setdefault(key, _Poll())
                is_old = poll.ended_at is None or self._clock() - poll.ended_at >= ttl_s
                if is_old and not poll.is_running:
                    poll.is_running, poll.began_at = True, self._clock()
                    name = "-".join(map(str, key)) if isinstance(key, tuple) else str(key)
                    threading.Thread(target=self._run, args=(poll, read), daemon=True, name=name).start()

    def results(
        self, reads: Mapping[Hashable, Callable[[], Any]], *, ttl_s: float | None = None
    ) -> dict[Hashable, PollResult[Any]]:
        """Begin the polls, and return the result for each key."""
        self.begin(reads, ttl_s=ttl_s)
        with self._changed:
            polls = {key: self._polls[key] for key in reads}
            while (left_s := self._left_s(polls)) > 0:
                self._changed.wait(left_s)
            return {key: self._result(poll) for key, poll in polls.items()}

    def _left_s(self, polls: Mapping[Hashable, _Poll]) -> float:
        running = [poll.began_at + self._wait_s - self._clock() for poll in polls.values() if poll.is_running]
        return max(running, default=0.0)

    def _result(self, poll: _Poll) -> PollResult[Any]:
        if not poll.is_running:
            return PollResult(poll.value, poll.problem)
        problem = f"No answer for {format_duration(self._clock() - poll.began_at)}"
        if poll.value is not None:
            return PollResult(poll.value, f"{problem}; this is {format_duration(self._clock() - poll.valued_at)} old.")
        return PollResult(None, f"{problem}." + (f" Before that: {poll.problem}" if poll.problem else ""))

    def _run(self, poll: _Poll, read: Callable[[], Any]) -> None:
        value, problem = None, None
        try:
            value = read()
        except _KNOWN_ERRORS as error:
            problem = single_line(error, _MAX_PROBLEM_CHARS)
        except Exception as error:  # its text may hold a secret
            logger.exception("A poll of the fleet failed.")
            problem = f"It cannot be read ({type(error).__name__}): see the log of the API server."
        with self._changed:
            poll.value, poll.problem, poll.is_running = value, problem, False
            poll.ended_at = poll.valued_at = self._clock()
            self._changed.notify_all()
