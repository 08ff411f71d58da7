"""``asyncio.timeout`` without the bug that it has up to Python 3.11.2, the version of Debian 12.

In a task that has ever handled a cancellation, for example by aiohttp's own timeouts, it raises its own CancelledError
instead of TimeoutError. See gh-102780 of CPython.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType

if sys.version_info[:3] >= (3, 11, 3):
    within = asyncio.timeout
else:

    class _Timeout(asyncio.Timeout):  # type: ignore[misc]  # final only for type checkers
        async def __aenter__(self) -> _Timeout:
            task = asyncio.current_task()
            self._handled = 0 if task is None else task.cancelling()
            await super().__aenter__()
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            await super().__aexit__(kind, error, trace)
            task = asyncio.current_task()
            is_own = self.expired() and task is not None and task.cancelling() <= self._handled
            if is_own and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def within(delay: float | None) -> asyncio.Timeout:
        """Raise TimeoutError when the block takes longer than ``delay`` seconds; never with None."""
        return _Timeout(None if delay is None else asyncio.get_running_loop().time() + delay)
