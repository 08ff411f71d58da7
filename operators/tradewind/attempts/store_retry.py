"""A store that refuses or is silent is asked again, for as long as a lease may go without renewal.

Even a refusal passes, such as that of a token that has just been replaced. Every other error is final: a lost lease, an
input that changed, a mistake of ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tradewind.machine import boot_time
from tradewind.records.lease import LeaseTimes
from tradewind.storage.errors import StoreError

RETRY_TIMEOUT_S: Final = LeaseTimes().fence_s
"""For whoever does not know its lease."""
RETRY_PAUSE_S: Final = 1.0

Result = TypeVar("Result")


def retry_store(
    call: Callable[[], Result], patience_s: float = RETRY_TIMEOUT_S, *, clock: Callable[[], float] = boot_time
) -> Result:
    """What ``call`` returns, once the store lets it; it may be called many times, and always twice.

    Raises:
        StoreError: The store has refused or been silent for ``patience_s``.
    """
    first: float | None = None
    while True:
        try:
            return call()
        except StoreError as error:
            now = clock()
            first = now if first is None else first
            if now - first >= patience_s:
                raise
            print(f"tradewind: the store does not do what it is asked ({error}); trying again.", flush=True)
        time.sleep(min(RETRY_PAUSE_S, patience_s / 10))
