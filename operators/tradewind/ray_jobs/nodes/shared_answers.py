"""One answer for many askers: who asks the same of the same cluster within a minute gets what was said."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tradewind.ray_jobs.api import JobsApi

FRESH_S = 60.0
T = TypeVar("T")

_answers: weakref.WeakKeyDictionary[JobsApi, dict[str, tuple[float, asyncio.Task[Any]]]] = weakref.WeakKeyDictionary()


async def shared(api: JobsApi, question: str, ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of ``ask``, which may be up to ``FRESH_S`` old; an error is not kept."""
    answers = _answers.setdefault(api, {})
    known = answers.get(question)
    if known is None or time.monotonic() - known[0] > FRESH_S or _has_failed(known[1]):
        known = answers[question] = (time.monotonic(), asyncio.ensure_future(ask()))
    found: T = await asyncio.shield(known[1])
    return found


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
