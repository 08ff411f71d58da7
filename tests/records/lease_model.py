"""Test environment of leases: one store, one clock, and processes that pause at each store request.

The processes run the real code. The driver of the model resumes one process at a time and decides the fate of its
request: the store answers it, loses the answer, receives it much later or is down, or the process dies. The store
follows the contract of ``conditional``; the environment checks every change of the lease against the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import fsspec
import greenlet  # type: ignore[import-untyped]
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.records.lease import Lease, Phase
from tradewind.records.lease_store import HeldLease, LeaseStore
from tradewind.storage import paths
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import LeaseLostError, StoreError, StoreUnavailableError
from tradewind.storage.swap import StoredObject

OUTPUT = "model://out"


class Fate(Enum):
    """The result of a request."""

    ANSWERED = "answered"
    LOST = "done, but the answer is lost"
    LATE = "not done yet, and given up"
    DOWN = "not done"
    REFUSED = "not done, and refused"
    DIES = "its process dies first"


class DiedError(BaseException):
    """Raised where the process is killed."""


@dataclass
class Process:
    """Run real code as a greenlet that pauses at every request until the model resumes it."""

    environment: Environment
    run: Callable[[Process], None]
    skew_s: float = 0.0
    incarnation: str | None = None
    job: str = ""
    may_withdraw: int | None = None
    must_end: Callable[[], bool] = lambda: False
    """Whether the process ends when it next runs, as a driver frozen past its fencing interval does."""
    ended: bool = False
    _greenlet: greenlet.greenlet | None = None

    def resume(self, fate: Fate = Fate.ANSWERED) -> None:
        """Run the process to its next request or its end."""
        if self._greenlet is None:
            self._greenlet = greenlet.greenlet(self._main)
        before, running.process = running.process, self
        try:
            self._greenlet.switch(fate)
        finally:
            running.process = before

    def pause(self) -> Fate:
        """Pause until resumed. The process itself calls this."""
        assert self._greenlet is not None and self._greenlet.parent is not None
        fate: Fate = self._greenlet.parent.switch()
        if fate is Fate.DIES:
            raise DiedError
        return fate

    def kill(self) -> None:
        if not self.ended:
            self.resume(Fate.DIES)

    def store(self, make: type[LeaseStore]) -> LeaseStore:
        """Return the lease store as this process sees it: its clocks are off by its own skew."""
        environment = self.environment
        return make(
            OUTPUT,
            now=lambda: environment.time + self.skew_s,
            clock=lambda: environment.time + 1000 * self.skew_s,
            read=environment.read,
            write=environment.write,
        )

    def _main(self, fate: Fate) -> None:
        try:
            if fate is not Fate.DIES:
                self.run(self)
        except (DiedError, StoreError, LeaseLostError):
            pass
        finally:  # the driver of the model raises a broken rule
            self.ended = True


class Running:
    process: Process | None = None


running = Running()


def request(do: Callable[[], Any]) -> Any:
    """Send one request of the running process; outside of processes, answer it at once."""
    process = running.process
    if process is None:
        return do()
    fate = process.pause()
    if fate is Fate.DOWN:
        raise StoreUnavailableError("The store is down.")
    if fate is Fate.REFUSED:
        raise StoreRefusedError("The store refuses.")
    if fate is Fate.LATE:
        process.environment.late.append(do)
        raise StoreUnavailableError("There was no answer.")
    answer = do()
    if process.pause() in (Fate.ANSWERED, Fate.LATE):
        return answer
    raise StoreUnavailableError("The answer was lost.")


class ModelFiles(MemoryFileSystem):
    protocol = "model"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).replace("model://", "memory://")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        request(lambda: MemoryFileSystem.pipe_file(self, path, value, mode=mode, **kwargs))

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        answer: bytes = request(lambda: MemoryFileSystem.cat_file(self, path, *args, **kwargs))
        return answer

    def rm_file(self, path: str) -> None:
        """Remove the object of this generation, as Google Cloud Storage does; a newer object stays."""
        meant = self.store.get(self._strip_protocol(path))

        def remove() -> None:
            if self.store.get(self._strip_protocol(path)) is meant and meant is not None:
                MemoryFileSystem.rm_file(self, path)

        if running.process is not None and running.process.must_end():
            raise DiedError
        request(remove)

    def put_now(self, path: str, text: str) -> None:
        """Write at once, as the live process of a function does; the store has no outage."""
        MemoryFileSystem.pipe_file(self, path, text.encode())

    def text_of(self, path: str) -> str | None:
        """Return the text of the file at this path without a store request."""
        stored = self.store.get(self._strip_protocol(path))
        return None if stored is None else stored.getvalue().decode()


fsspec.register_implementation("model", ModelFiles, clobber=True)
paths._SCHEMES["model"] = "memory"  # a store of the tests, which the path check does not know


class Environment:
    """Time, the lease, and the processes."""

    def __init__(self) -> None:
        self.time = 1e6
        self.processes: list[Process] = []
        self.late: list[Callable[[], Any]] = []
        self.commits_due = 1
        self.commits: list[Lease] = []
        self._lease: Lease | None = None
        self._tag = 0
        self._written_at = 0.0
        ModelFiles.store.clear()
        ModelFiles.pseudo_dirs[:] = [""]

    @property
    def lease(self) -> Lease | None:
        return self._lease

    @property
    def lease_age_s(self) -> float:
        return self.time - self._written_at

    def read(self, path: str) -> StoredObject | None:
        stored: StoredObject | None = request(self._stored)
        return stored

    def write(self, path: str, text: str, expected: str | None) -> StoredObject | None:
        writer = running.process
        written: StoredObject | None = request(lambda: self._swap(writer, Lease.from_json(text), expected))
        return written

    def overwrite(self, lease: Lease) -> HeldLease:
        """Write without a condition; no real store call does this."""
        writer = running.process
        stored = request(lambda: self._swap(writer, lease, self._expected()))
        return HeldLease(lease, stored.tag, stored.age_s, self.time)

    def _stored(self) -> StoredObject | None:
        if self._lease is None:
            return None
        return StoredObject(self._lease.to_json(), str(self._tag), self.lease_age_s)

    def _expected(self) -> str | None:
        return str(self._tag) if self._lease is not None else None

    def _swap(self, writer: Process | None, lease: Lease, expected: str | None) -> StoredObject | None:
        if expected != self._expected():
            return None
        if writer is not None:
            self._check(writer, self._lease, lease)
        self._lease, self._tag, self._written_at = lease, self._tag + 1, self.time
        return self._stored()

    def _check(self, writer: Process, old: Lease | None, new: Lease) -> None:
        assert old is None or new.counter > old.counter, "a counter did not grow"
        if old is None or old.worker_id != new.worker_id:
            self._check_claim(writer, old, new)
        elif old.phase is not new.phase:
            self._check_step(writer, old, new)
        elif new.phase is Phase.RUNNING and writer.incarnation != old.incarnation:
            is_request = not old.stop_requested and bool(new.stop_requested)
            assert is_request, "another process renewed the lease of an owner"
        if new.phase is Phase.COMMITTED:
            self.commits.append(new)
            assert len(self.commits) <= self.commits_due, "two results without a withdrawal between them"

    def _check_claim(self, writer: Process, old: Lease | None, new: Lease) -> None:
        assert new.phase is Phase.CLAIMED and new.incarnation is None, "an attempt began without a claim"
        if old is None:
            return
        assert new.attempt > old.attempt, "an attempt was counted twice"
        if old.phase is Phase.RUNNING:
            assert self.lease_age_s > old.stale_s, "a lease was taken over early"
        if old.phase is Phase.CLAIMED and old.by["run"] != new.by["run"]:
            assert self.lease_age_s > old.stale_s, "a claim was taken over early"
        if old.phase is Phase.COMMITTED:
            assert old.attempt == writer.may_withdraw, "a result was withdrawn without a request"
            self.commits_due += 1

    def _check_step(self, writer: Process, old: Lease, new: Lease) -> None:
        assert (old.attempt, old.job) == (new.attempt, new.job), "an attempt became another one"
        if old.phase is Phase.CLAIMED and new.phase is Phase.RUNNING:
            assert (new.incarnation, new.job) == (writer.incarnation, writer.job), "a process began the job of another"
        elif old.phase is Phase.CLAIMED:
            assert new.phase in (Phase.STOPPED, Phase.FAILED), "an attempt that never ran was committed"
        else:
            assert old.phase is Phase.RUNNING, "an attempt ended twice"
            assert new.incarnation == writer.incarnation, "a process ended the attempt of another"
