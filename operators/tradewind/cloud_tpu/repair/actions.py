"""Actions of one pass: delete and recreate slices, many at once, and follow them by listing all.

A few go first, one of each kind. If such a creation is refused in a way that waiting does not mend, no more slices of
its kind are deleted. At most ``MAX_CONCURRENT_CALLS`` calls run at once. An operation itself is polled only if the
lists do not show its result, and less and less often. So a pass's requests are bounded by its actions and the pages of
the lists.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from tradewind.cloud_tpu.api import MAX_CONCURRENT_CALLS, TpuApi, TpuOperation
from tradewind.cloud_tpu.errors import (
    BadSliceError,
    OperationTimeoutError,
    QuotaError,
    StockOutError,
    TpuApiError,
    TpuConflictError,
    TpuDeniedError,
    TpuNotFoundError,
    TpuPreconditionError,
    TpuUnreachableError,
)
from tradewind.cloud_tpu.repair.records import Deletion, RepairLock, SliceRecord, SliceRecords
from tradewind.cloud_tpu.repair.rules import decide
from tradewind.cloud_tpu.repair.terms import Action, Finding, RepairSettings, Scope, Snapshot
from tradewind.cloud_tpu.resources import ANY_KIND, body_kind
from tradewind.machine import boot_time

logger = logging.getLogger(__name__)

FIRST_S: Final = 120.0
"""How long the first few are waited for before the others follow."""
MAX_WAIT_S: Final = 600.0
"""How long the others are waited for; the next pass continues unfinished ones."""
_FIRST_PAUSE_S: Final = 0.25
SNAPSHOT_TTL_S: Final = 10.0
"""Maximum age of a snapshot at a deletion: the process may have been frozen since."""
LOCK_TIMEOUT_S: Final = 15.0
"""How long to wait for the repair lock while another repair holds it."""
_BATCH: Final = 512
"""Deletions per snapshot: it is two seconds old at the last of them."""
_REPLACED: Final = "left alone: another process has replaced it"

_NO_CAPACITY: Final = (StockOutError, QuotaError)
_NEEDS_USER: Final = (BadSliceError, TpuDeniedError, TpuNotFoundError, TpuPreconditionError)
T = TypeVar("T")


class _Stage(Enum):
    """Stage of the action on one slice."""

    DELETE = "to be deleted"
    DELETING = "being deleted"
    CREATE = "to be created"
    CREATING = "being created"
    DONE = "done"


@dataclass
class _Work:
    """The action on one slice, with its progress."""

    finding: Finding
    record: SliceRecord
    stage: _Stage
    result: str = ""
    operation: TpuOperation | None = None
    next_check: int = 0
    checks: int = 0

    def end(self, result: str) -> None:
        """End it for this pass."""
        self.stage, self.result = _Stage.DONE, result

    def may_check(self, poll: int) -> bool:
        """Return whether to poll the operation itself: at the first, second, fourth, eighth poll…"""
        if self.operation is None or poll < self.next_check:
            return False
        self.checks += 1
        self.next_check = poll + 2**self.checks
        return True


class RepairActions:
    """Carries out the actions of one pass.

    Args:
        api: API of the slices' zone.
        observe: Returns a present snapshot.
        scope: Which slices belong to the cluster.
        settings: Waits and limits.
        records: Persistent records.
        clock: Seconds since the epoch.
        lock: Repair lock, if several repairs share the records.

    Attributes:
        denied: Slices whose creation was refused in a way that waiting does not mend.
    """

    def __init__(
        self,
        api: TpuApi,
        observe: Callable[[], Snapshot],
        scope: Scope,
        settings: RepairSettings,
        records: SliceRecords,
        clock: Callable[[], float],
        lock: RepairLock | None = None,
    ) -> None:
        self.denied: set[str] = set()
        self._api = api
        self._observe = observe
        self._scope = scope
        self._settings = settings
        self._records = records
        self._clock = clock
        self._lock = lock
        self._refused: dict[str, str] = {}
        self._pool: ThreadPoolExecutor

    def carry_out(self, due: Sequence[Finding], records: Mapping[str, SliceRecord]) -> dict[str, str]:
        """Carry out the due actions; return their results in words, by name."""
        done: dict[str, str] = {}
        with ThreadPoolExecutor(MAX_CONCURRENT_CALLS, thread_name_prefix="slice-repair") as self._pool:
            for wave, timeout_s in waves(due):
                works = [
                    _Work(
                        finding,
                        records[finding.name],
                        _Stage.CREATE if finding.action is Action.CREATE else _Stage.DELETE,
                    )
                    for finding in wave
                ]
                try:
                    self._work_off(works, timeout_s)
                finally:
                    self._write_notes(works, records)
                done |= {work.finding.name: work.result for work in works}
        return done

    def _work_off(self, works: Sequence[_Work], timeout_s: float) -> None:
        self._delete_under_lock(_at(works, _Stage.DELETE))
        self._each(self._create, _at(works, _Stage.CREATE))
        poll, pause, waited_s = 0, min(_FIRST_PAUSE_S, self._api.poll_s), 0.0
        while waiting := _at(works, _Stage.DELETING, _Stage.CREATING):
            # Only the API's lists: hosts registered with Ray do not matter here.
            snapshot = Snapshot(self._api.nodes(), self._api.queued_resources(), None, {}, self._clock())
            self._each(lambda work, snapshot=snapshot, poll=poll: self._follow(work, snapshot, poll), waiting)  # type: ignore[misc]
            self._each(self._create, _at(works, _Stage.CREATE))
            if not _at(works, _Stage.DELETING, _Stage.CREATING) or waited_s > timeout_s:
                break
            self._api.pause(pause)
            waited_s, pause, poll = waited_s + pause, min(2 * pause, self._api.poll_s), poll + 1
        for work in _at(works, _Stage.DELETING, _Stage.CREATING):
            is_deleting = work.stage is _Stage.DELETING
            work.end("still being deleted: the next pass continues" if is_deleting else "being created")

    def _delete_under_lock(self, works: Sequence[_Work]) -> None:
        """Start these deletions under the repair lock."""
        works = [work for work in works if not self._is_put_off(work)]
        try:
            for begin in range(0, len(works), _BATCH):
                batch = works[begin : begin + _BATCH]
                if self._acquire_lock():
                    self._delete(batch)
                else:
                    for work in batch:
                        work.end("left alone: another repair is deleting slices at present")
        finally:
            if self._lock is not None:
                self._lock.release()

    def _acquire_lock(self) -> bool:
        """Acquire the repair lock, waiting a while for another repair; renewed fully with each batch."""
        waited_s, pause = 0.0, _FIRST_PAUSE_S
        while self._lock is not None and not self._lock.acquire():
            if waited_s >= LOCK_TIMEOUT_S:
                return False
            self._api.pause(pause * random.uniform(0.5, 1.0))
            waited_s, pause = waited_s + pause, min(2 * pause, self._api.poll_s)
        return True

    def _delete(self, works: Sequence[_Work]) -> None:
        """Start these deletions, unless another snapshot contradicts them."""
        observed_at = boot_time()
        snapshot = self._observe()
        again = {finding.name: finding for finding in decide(snapshot, self._scope, self._settings)}
        for work in works:
            if why := _reason_to_skip(work.finding, again.get(work.finding.name), snapshot):
                work.end(why)
        works = _at(works, _Stage.DELETE)
        now = self._clock()
        self._records.write_deletions([_deletion(work.finding, now) for work in works])
        is_few = len(works) <= MAX_CONCURRENT_CALLS
        self._each(lambda work: self._begin_deleting(work, is_few, observed_at), works)

    def _begin_deleting(self, work: _Work, is_few: bool, observed_at: float) -> None:
        """Start one deletion. Each of a few slices is read just before: cheap, with the shortest delay.

        A slice that the list still contains after its deletion is read as well: the list may be old. So is each slice
        when their common snapshot is no longer recent.
        """
        finding = work.finding
        is_old = boot_time() - observed_at > SNAPSHOT_TTL_S / 2
        if is_few or is_old or work.record.identity == finding.identity:
            observed_at = boot_time()
            existing = self._api.find(finding.name, finding.is_queue)
            if existing is not None and existing.identity != finding.identity:
                work.end(_REPLACED)
                return

        def may_send() -> bool:
            is_held = self._lock is None or self._lock.is_held
            return is_held and boot_time() - observed_at < SNAPSHOT_TTL_S

        logger.info("Deleting slice %s: %s.", finding.name, finding.reason)
        operation = self._api.begin_delete(finding.name, finding.is_queue, finding.identity, may_send)
        work.stage, work.operation, work.next_check = _Stage.DELETING, operation, 2

    def _follow(self, work: _Work, snapshot: Snapshot, poll: int) -> None:
        if work.stage is _Stage.DELETING:
            self._follow_deletion(work, snapshot, poll)
        else:
            self._follow_creation(work, snapshot, poll)

    def _follow_deletion(self, work: _Work, snapshot: Snapshot, poll: int) -> None:
        finding = work.finding
        resources: Mapping[str, Any] = snapshot.queues_by_name if finding.is_queue else snapshot.nodes_by_name
        existing = resources.get(finding.name)
        if existing is not None and existing.identity == finding.identity:
            if existing.state != "DELETING" and work.may_check(poll):
                assert work.operation is not None
                self._api.has_ended(work.operation)
        elif existing is not None:
            work.end(_REPLACED)
        elif finding.action is Action.DELETE:
            work.end("deleted")
        elif not any(node.queue == finding.name or node.name in finding.slices for node in snapshot.nodes):
            work.stage, work.operation = _Stage.CREATE, None

    def _create(self, work: _Work) -> None:
        finding = work.finding
        if self._is_put_off(work):
            return
        assert finding.body is not None
        try:
            work.operation = self._api.begin_create(finding.name, finding.body)
        except TpuConflictError:
            self._end_creation(work, "exists already")
            return
        work.stage, work.next_check, work.checks = _Stage.CREATING, 0, 0

    def _follow_creation(self, work: _Work, snapshot: Snapshot, poll: int) -> None:
        """Check the operation of a creation that is not listed. A queued resource is accepted or refused."""
        finding, result = work.finding, "created" if work.finding.action is Action.CREATE else "replaced"
        node = snapshot.nodes_by_name.get(finding.name)
        if finding.name in snapshot.queues_by_name if finding.is_queue else node is not None and node.state == "READY":
            self._end_creation(work, result)
        elif node is None and work.may_check(poll):
            assert work.operation is not None
            if self._api.has_ended(work.operation):
                self._end_creation(work, result)

    def _end_creation(self, work: _Work, result: str) -> None:
        work.record = work.record.with_creation()
        work.end(result)
        logger.info("Slice %s: %s.", work.finding.name, result)

    def _refuse(self, work: _Work, error: TpuApiError) -> None:
        """Schedule a retry, later each time. The slice stays wanted."""
        pause = self._settings.stock_out_pause_s * 2.0 ** min(work.record.refusals, 30)
        pause = min(pause, self._settings.max_stock_out_pause_s) * random.uniform(0.8, 1.0)
        denied = self._denied(work.finding, error) if isinstance(error, _NEEDS_USER) else ""
        work.record = work.record.with_refusal(str(error), self._clock() + pause, denied)
        if isinstance(error, _NO_CAPACITY):
            work.end(f"no capacity or quota; next try in {pause:.0f} s")
        else:
            work.end(f"{type(error).__name__}: {error}".splitlines()[0])
        logger.warning("Slice %s cannot be created: %s Next try in %.0f s.", work.finding.name, error, pause)

    def _denied(self, finding: Finding, error: TpuApiError) -> str:
        kind = ANY_KIND if isinstance(error, TpuDeniedError) else body_kind(finding.body or {})
        self._refused[kind] = finding.name
        self.denied.add(finding.name)
        return kind

    def _is_put_off(self, work: _Work) -> bool:
        """Put a creation off if one of the same kind was refused in this pass; return whether it is."""
        if not self._refused or work.finding.body is None or work.finding.action is Action.DELETE:
            return False
        refused = self._refused.get(ANY_KIND) or self._refused.get(body_kind(work.finding.body))
        if refused is not None:
            work.end(f"put off: the creation of {refused} was refused")
        return refused is not None

    def _each(self, action: Callable[[_Work], None], works: Iterable[_Work]) -> None:
        """Apply ``action`` to each, several at once; one failure does not stop the others."""

        def apply(work: _Work) -> None:
            is_creation = work.stage in (_Stage.CREATE, _Stage.CREATING)
            try:
                action(work)
            except TpuApiError as error:
                if is_creation and not isinstance(error, TpuUnreachableError | OperationTimeoutError):
                    self._refuse(work, error)
                else:
                    logger.warning("Slice %s: %s", work.finding.name, error)
                    work.end(f"{type(error).__name__}: {error}".splitlines()[0])

        for _ in self._pool.map(apply, works):
            pass

    def _write_notes(self, works: Sequence[_Work], records: Mapping[str, SliceRecord]) -> None:
        changed = {
            work.finding.name: work.record
            for work in works
            if work.record.notes() != records[work.finding.name].notes()
        }
        if changed:
            self._records.write_notes(changed)


def waves(due: Sequence[Finding]) -> Iterator[tuple[Sequence[Finding], float]]:
    """Yield one of each kind, preferably without a deletion; then all others."""
    first: dict[str, Finding] = {}
    for finding in sorted(due, key=lambda finding: finding.is_deletion):
        if finding.action is not Action.DELETE and finding.body is not None:
            first.setdefault(body_kind(finding.body), finding)
    others = [finding for finding in due if first.get(body_kind(finding.body or {})) is not finding]
    yield list(first.values()), FIRST_S if others else MAX_WAIT_S
    if others:
        yield others, MAX_WAIT_S


def _at(works: Iterable[_Work], *stages: _Stage) -> list[_Work]:
    return [work for work in works if work.stage in stages]


def _reason_to_skip(finding: Finding, again: Finding | None, snapshot: Snapshot) -> str:
    """Return why it is not deleted after all; empty if it is."""
    if again is None or again.action is Action.CREATE:
        return "left alone: it is gone already"
    if again.identity != finding.identity:
        return _REPLACED
    if again.hosts_alive > finding.hosts_alive:
        return "left alone: its hosts are back"
    if snapshot.hosts is None and finding.trouble == "HOSTS":
        return "left alone: Ray does not answer any more"
    return "" if again.is_deletion else f"left alone: {again.reason}"


def _deletion(finding: Finding, now: float) -> Deletion:
    """Return the complete deletion record: an earlier one may just have been settled."""
    body = finding.body if finding.action is Action.REPLACE else None
    return Deletion(finding.name, finding.identity, now, body, finding.is_certain)
