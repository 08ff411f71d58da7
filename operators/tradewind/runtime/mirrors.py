"""Sync the mirrored paths of a step into the region of its run: the owner of a copy's lease copies it once.

Other steps that need it wait, read it once it is complete, and take the copy over when its owner has died. All budgets
are checked before the first byte is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from tradewind.attempts.renewal import LeaseRenewer, make_copy
from tradewind.records.lease_store import HeldLease, LeaseHolder, LeaseStore, is_in_use
from tradewind.runtime.mirror_copies import (
    MIRRORED,
    FoundSource,
    MirrorCopy,
    MirrorError,
    find_source,
    is_mirrored,
    record_of,
)
from tradewind.serialization.mirrors import MirroredPath
from tradewind.steps.amounts import human_size

GIGABYTE: Final = 10**9
_MAX_POLL_S: Final = 2.0
_say: Final = partial(print, flush=True)

Result = TypeVar("Result")


class MirrorSync:
    """Syncs the mirrored paths of one attempt.

    Args:
        by: The task that needs them, as leases name it.
        heartbeat_s: How often the lease of a copy is renewed.
        step: The lease of the attempt itself: when it ends, so does the copying.
    """

    def __init__(self, by: Mapping[str, Any], heartbeat_s: float, step: LeaseHolder) -> None:
        self._by = dict(by)
        self._heartbeat_s = heartbeat_s
        self._step = step

    def sync_all(self, mirrors: Sequence[MirroredPath]) -> None:
        """Return when all paths can be read in the run's prefix.

        Raises:
            MirrorError: A path cannot be copied; none was copied if the reason is its budget.
            LeaseLostError: The attempt no longer owns its lease.
            StoreError: A store has refused or not answered for too long.
        """
        wanted = [mirror for mirror in mirrors if not mirror.is_made_here]
        retry = self._step.retry_store
        missing = [mirror for mirror in wanted if not retry(partial(is_mirrored, mirror))]
        for mirror in missing:
            self._check_budget(mirror, retry(partial(find_source, mirror)))
        for mirror in missing:
            while not retry(partial(self._sync, mirror)):
                self._wait(mirror)

    def _sync(self, mirror: MirroredPath) -> bool:
        """Copy the path unless another process does; return whether it is complete."""
        store = LeaseStore(record_of(mirror.prefix, mirror.name))
        previous = store.read()
        if is_mirrored(mirror):
            return True
        if previous is not None and is_in_use(previous):
            return False
        source = find_source(mirror)
        self._check_budget(mirror, source)
        began = time.monotonic()

        def copy(owner: LeaseRenewer) -> str:
            _say(f"{mirror.field}: copying {_amount(source)} from {source.prefix} to {mirror.path}.")
            work = MirrorCopy(mirror, source, _CombinedLease(owner, self._step))
            copied = work.make()
            seconds = time.monotonic() - began
            _say(f"{mirror.field}: copied {copied} files to {mirror.path} in {seconds:.1f} s.")
            return work.digest

        if make_copy(store, previous, self._by | {MIRRORED: mirror.name}, copy, self._heartbeat_s):
            return True
        self._step.check()
        return False

    def _check_budget(self, mirror: MirroredPath, source: FoundSource) -> None:
        budget = mirror.budget_gb
        if budget is not None and source.size > budget * GIGABYTE:
            limit = human_size(int(budget * GIGABYTE))
            raise MirrorError(
                f"{mirror.field}: {_amount(source)} would be copied from {source.prefix} to {mirror.path}, and the "
                f"budget is {limit}: nothing was copied. Give mirrored(..., budget_gb=...) more, or mirror a part."
            )

    def _wait(self, mirror: MirroredPath) -> None:
        store = LeaseStore(record_of(mirror.prefix, mirror.name))
        has_logged = False
        while (held := self._step.retry_store(store.read)) is not None and is_in_use(held):
            if not has_logged:
                owner = ", ".join(f"{key} {value}" for key, value in held.lease.by.items() if key != MIRRORED)
                _say(f"{mirror.field}: {mirror.path} is being copied ({owner}): waiting.")
                has_logged = True
            self._step.check()
            time.sleep(min(_MAX_POLL_S, held.lease.times.poll_s))


class _CombinedLease:
    """The lease of a copy, which also ends when that of the step does."""

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


def _amount(source: FoundSource) -> str:
    count = len(source.files)
    return f"{human_size(source.size)} ({count:,} {'file' if count == 1 else 'files'})"
