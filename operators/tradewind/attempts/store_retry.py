"""Retry store calls for at most one fencing interval.

A refusal is retried too, since it can pass: a token may have just been replaced. Every other error is final, such as a
lost lease, a changed input or an internal error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tradewind.machine import boot_time
from tradewind.records.lease import LeaseTimes
from tradewind.storage.errors import StoreError

RETRY_TIMEOUT_S: Final = LeaseTimes().fence_s
"""For callers that do not know the times of their lease."""
RETRY_PAUSE_S: Final = 1.0

Result = TypeVar("Result")


def retry_store(
    call: Callable[[], Result], timeout_s: float = RETRY_TIMEOUT_S, *, clock: Callable[[], float] = boot_time
) -> Result:
    """Call until the store answers, and return what ``call`` returns; it runs at least twice before it fails.

    Raises:
        StoreError: The store has refused, or not answered, for ``timeout_s``.
    """
    failing_since: float | None = None
    while True:
        try:
            return call()
        except StoreError as error:
            now = clock()
            failing_since = now if failing_since is None else failing_since
            if now - failing_since >= timeout_s:
                raise
            print(f"tradewind: a store call failed ({error}). Retrying for {timeout_s:g} s at most.", flush=True)
        time.sleep(min(RETRY_PAUSE_S, timeout_s / 10))
