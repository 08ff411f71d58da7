"""Bringing the mirrored paths of a step into the region of its run: each is copied once, by whoever takes its lease.

Everybody else who wants it waits, reads it once it is whole, and takes over when whoever copied it has died. All
budgets are looked at before the first byte is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from tradewind.attempts.renewal import LeaseEndReason, LeaseRenewer
from tradewind.records.lease import Phase, new_owner_id
from tradewind.records.lease_store import HeldLease, LeaseClaim, LeaseHolder, LeaseStore, is_in_use
from tradewind.runtime.mirror_copies import (
    MIRRORED,
    FoundSource,
    MirrorCopy,
    MirrorError,
    found_source,
    is_mirrored,
    record_of,
)
from tradewind.serialization.mirrors import MirroredPath
from tradewind.steps.amounts import human_size
from tradewind.storage.errors import LeaseLostError, StorageError

GIGABYTE: Final = 10**9
_LONGEST_LOOK_S: Final = 2.0

Result = TypeVar("Result")


class MirrorSync:
    """Brings the paths of one attempt.

    Args:
        by: Who wants them, as leases say it.
        heartbeat_s: How often the lease of a copy is renewed.
        step: The turn of the step itself: when it is over, so is the copying.
    """

    def __init__(self, by: Mapping[str, Any], heartbeat_s: float, step: LeaseHolder) -> None:
        self._by = dict(by)
        self._heartbeat_s = heartbeat_s
        self._step = step

    def sync_all(self, mirrors: Sequence[MirroredPath]) -> None:
        """Return when all of them can be read in their places.

        Raises:
            MirrorError: One cannot be had; none was copied if that is for its budget.
            LeaseLostError: The turn of the step is over.
            StoreError: A store has refused or been silent for too long.
        """
        wanted = [mirror for mirror in mirrors if not mirror.is_made_here]
        missing = [mirror for mirror in wanted if not self._asked(partial(is_mirrored, mirror))]
        for mirror in missing:
            self._check_budget(mirror, self._asked(partial(found_source, mirror)))
        for mirror in missing:
            while not self._asked(partial(self._is_brought, mirror)):
                self._wait(mirror)

    def _is_brought(self, mirror: MirroredPath) -> bool:
        """Copy it if nobody else does; whether it is here."""
        store = LeaseStore(record_of(mirror.prefix, mirror.name))
        over = store.read()
        if is_mirrored(mirror):
            return True
        if over is not None and is_in_use(over):
            return False
        found = found_source(mirror)
        self._check_budget(mirror, found)
        number = over.lease.attempt + 1 if over else 1
        by = self._by | {MIRRORED: mirror.name}
        claim = LeaseClaim(number, f"mirror-{new_owner_id()}", "", by, "", self._heartbeat_s)
        held = store.claim(over, claim)
        if held is None:
            return False
        return self._copy(mirror, found, store, store.change(held, phase=Phase.RUNNING, incarnation=new_owner_id()))

    def _copy(self, mirror: MirroredPath, found: FoundSource, store: LeaseStore, held: HeldLease) -> bool:
        began = time.monotonic()
        _say(f"{mirror.field}: copying {_amount(found)} from {found.prefix} to {mirror.path}.")
        with LeaseRenewer(store, held, end_work=_no_work) as keeper:
            try:
                copy = MirrorCopy(mirror, found, _CombinedLease(keeper, self._step))
                copied = copy.make()
                keeper.finish(phase=Phase.COMMITTED, digest=copy.digest)
            except BaseException as error:
                with suppress(StorageError):  # else it runs out, or is somebody else's by now
                    keeper.finish(phase=Phase.STOPPED)
                if not isinstance(error, LeaseLostError):
                    raise
                self._step.check()
                return False
        _say(f"{mirror.field}: {mirror.path} is there; {copied} files came in {time.monotonic() - began:.1f} s.")
        return True

    def _check_budget(self, mirror: MirroredPath, found: FoundSource) -> None:
        budget = mirror.budget_gb
        if budget is not None and found.size > budget * GIGABYTE:
            most = human_size(int(budget * GIGABYTE))
            raise MirrorError(
                f"{mirror.field}: {_amount(found)} would be copied from {found.prefix} to {mirror.path}, and the "
                f"budget is {most}: nothing was copied. Give mirrored(..., budget_gb=...) more, or mirror a part of it."
            )

    def _wait(self, mirror: MirroredPath) -> None:
        store = LeaseStore(record_of(mirror.prefix, mirror.name))
        is_told = False
        while (held := self._asked(store.read)) is not None and is_in_use(held):
            if not is_told:
                who = ", ".join(f"{key} {value}" for key, value in held.lease.by.items() if key != MIRRORED)
                _say(f"{mirror.field}: {mirror.path} is being copied ({who}): waiting.")
                is_told = True
            self._step.check()
            time.sleep(min(_LONGEST_LOOK_S, held.lease.times.poll_s))

    def _asked(self, call: Callable[[], Result]) -> Result:
        return self._step.retry_store(call)


class _CombinedLease:
    """The turn of a copy, which is also over when that of the step is."""

    def __init__(self, copy: LeaseHolder, step: LeaseHolder) -> None:
        self._copy = copy
        self._step = step

    @property
    def end(self) -> object | None:
        return self._copy.end or self._step.end

    def check(self) -> None:
        self._copy.check()
        self._step.check()

    def finish(self, **changes: Any) -> HeldLease:
        return self._copy.finish(**changes)

    def retry_store(self, call: Callable[[], Result], /) -> Result:
        return self._copy.retry_store(call)


def _amount(found: FoundSource) -> str:
    count = len(found.files)
    return f"{human_size(found.size)} ({count:,} {'file' if count == 1 else 'files'})"


def _no_work(end: LeaseEndReason) -> None:
    """Those that copy ask before each mebibyte."""


def _say(sentence: str) -> None:
    print(sentence, flush=True)
