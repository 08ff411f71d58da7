"""Until a job's driver has taken its lease over, whoever follows the job renews it; from then on only the driver."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tradewind.records.leases.lease import Phase
from tradewind.records.leases.store import LeaseStore
from tradewind.storage.errors import LeaseLostError, StoreError

SOON_S: Final = 1.0

logger = logging.getLogger(__name__)


async def renew_while_claimed(output_path: str, job: str) -> None:
    """Renew the lease of ``job`` until its driver has taken it over, or the turn is over."""
    store = LeaseStore(output_path)
    while (pause_s := await asyncio.to_thread(_renew, store, job)) is not None:
        await asyncio.sleep(pause_s)


@contextmanager
def renewed_while_claimed(output_path: str, job: str) -> Iterator[None]:
    """The same for the length of a block, from a thread."""
    store, done = LeaseStore(output_path), threading.Event()

    def renew() -> None:
        while not done.is_set() and (pause_s := _renew(store, job)) is not None:
            done.wait(pause_s)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _renew(store: LeaseStore, job: str) -> float | None:
    """Renew it once; seconds until the next time, or None when that is not ours any more."""
    try:
        held = store.read()
        if held is None or held.lease.job != job or held.lease.phase is not Phase.CLAIMED:
            return None
        return store.change(held).lease.heartbeat_s
    except LeaseLostError:
        return None
    except StoreError as error:
        logger.warning("The lease cannot be renewed: %s", error)
        return SOON_S
