"""Raise SIGINT, SIGTERM and SIGHUP as one exception anywhere in a command, so that ``finally`` runs.

A signal that the parent process ignores, as ``nohup`` does, stays ignored.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_T = TypeVar("_T")


class Interrupted(BaseException):
    """A signal told the command to end.

    Attributes:
        exit_code: The code that a shell expects.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interrupts:
    """Signal handlers of this process, active within ``catching``."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._caught: int | None = None

    @contextmanager
    def catching(self) -> Iterator[Interrupts]:
        """Raise ``Interrupted`` for each signal within the block."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        caught = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
        for number in caught:
            signal.signal(number, self._on_signal)
        try:
            yield self
        finally:
            for number in caught:
                signal.signal(number, before[number])

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` in an event loop and return its result; a signal cancels it."""
        return asyncio.run(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        self._task, self._caught = asyncio.current_task(), None
        try:
            return await work
        except asyncio.CancelledError:
            if self._caught is None:
                raise
            raise Interrupted(self._caught) from None
        finally:
            self._task = None

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._task is None:
            raise Interrupted(signum)
        self._caught = signum
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)
