"""SIGINT, SIGTERM and SIGHUP as one exception, wherever the command is at that moment, so that ``finally`` has its say.

A signal that the parent had switched off, as ``nohup`` does, stays switched off.
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
    """Somebody told the command to end.

    Attributes:
        exit_code: What a shell expects then.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interrupts:
    """The signals of this process, while ``catching``."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._caught: int | None = None

    @contextmanager
    def catching(self) -> Iterator[Interrupts]:
        """Within it, a signal raises ``Interrupted``."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        ours = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
        for number in ours:
            signal.signal(number, self._on_signal)
        try:
            yield self
        finally:
            for number in ours:
                signal.signal(number, before[number])

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of ``work`` in an event loop, which a signal cancels."""
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
