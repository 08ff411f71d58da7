"""Processes that race to claim, run and commit many versions; some die in the middle.

Run as ``python -m tests.records.racers JSON``. Marker files that only one process can create prove what the racers
did. The main process forks the racers before it has any thread, and forks a replacement for each that dies, until all
versions are made.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fsspec import get_filesystem_class
from fsspec.core import split_protocol

from tradewind.attempts.renewal import LeaseRenewer
from tradewind.records.attempts import Attempt
from tradewind.records.cleanup import remove_leftovers
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import claim_attempt, commit_attempt, next_attempt_number
from tradewind.records.record import Record, RecordState, Status, write_status
from tradewind.runtime.driver.process_guard import KernelTimer
from tradewind.storage.errors import LeaseLostError, StoreUnavailableError
from tradewind.storage.files import write_text

DEATHS_OF_100 = 25
Die = Callable[[random.Random], None]
EndAt = Callable[[float], None]


@dataclass(frozen=True)
class Race:
    """Settings of a race.

    Reads of all versions are at most ``pause_s`` apart, so that lease owners get CPU for their heartbeats. An attempt
    writes the file ``data``, with its number if no guard can kill the racer in the middle of a write.
    """

    outputs: list[str]
    markers: str
    heartbeat_s: float
    racers: int
    deadline_s: float
    pause_s: float = 0.0
    data: str = "data"

    def mark(self, what: str) -> None:
        """Create a marker file; fail if another process has created it."""
        Path(self.markers, what).open("x").close()

    def run(self, name: str, die: Die, end_at: EndAt = lambda at: None) -> None:
        """Race for every version until all are made; ``end_at`` is the boot time at which this racer ends.

        A racer retries later if the store does not answer in time, as on a busy machine. Its unfinished attempt
        then ends as if the racer had died.
        """
        luck = random.Random(name)
        waiting = dict(enumerate(self.outputs))
        while waiting:
            for number in list(waiting):
                with suppress(LeaseLostError, StoreUnavailableError):
                    if self._is_made(number, luck, die, end_at):
                        del waiting[number]
            time.sleep(luck.uniform(0.0, self.pause_s or 2 * self.heartbeat_s))

    def _is_made(self, number: int, luck: random.Random, die: Die, end_at: EndAt) -> bool:
        path = self.outputs[number]
        store = LeaseStore(path)
        held_before = store.read()
        record = Record(None, held_before.lease, held_before.age_s, has_output=True) if held_before else Record()
        if record.state in (RecordState.FINISHED, RecordState.AT_WORK):
            return record.state is RecordState.FINISHED
        attempt = Attempt(next_attempt_number(path, record.lease), uuid.uuid4().hex, "", {}, {})
        if claim_attempt(store, path, held_before, attempt, "v", self.heartbeat_s) is None:
            return False
        self._make(number, store, attempt, luck, die, end_at)
        return True

    def _make(
        self, number: int, store: LeaseStore, attempt: Attempt, luck: random.Random, die: Die, end_at: EndAt
    ) -> None:
        path = self.outputs[number]
        die(luck)
        held = store.take_over(attempt.job, uuid.uuid4().hex)
        killed_s = held.lease.times.kill_s
        with LeaseRenewer(store, held, lambda end: None, lambda at: end_at(at + killed_s)) as renewer:
            self.mark(f"{number}-run-{attempt.number}")
            write_status(path, Status.RUNNING)
            if attempt.number > 1:
                remove_leftovers(path, (), renewer.check)
            renewer.check()
            write_text(f"{path}/{self.data.format(attempt.number)}", attempt.job)
            die(luck)
            commit_attempt(renewer.finish, path, attempt, renewer.check)
        self.mark(f"{number}-made")
        die(luck)


def killed_at_any_moment(luck: random.Random) -> None:
    """Let the kernel kill this process at a random moment within a few milliseconds."""
    if luck.randrange(100) < DEATHS_OF_100:
        signal.setitimer(signal.ITIMER_REAL, luck.uniform(0.0001, 0.03))


def main(race: Race) -> int:
    """Keep the set number of racers running until all versions are made; return the number of deaths."""
    deadline = time.monotonic() + race.deadline_s
    get_filesystem_class(split_protocol(race.outputs[0])[0] or "file")  # so that racers need not load it
    racing = {_fork(race, f"first {number}") for number in range(race.racers)}
    deaths = 0
    try:
        while racing and time.monotonic() < deadline:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(0.01)
                continue
            racing.remove(pid)
            if os.WIFSIGNALED(status):
                deaths += 1
                racing.add(_fork(race, f"next {deaths}"))
            elif os.waitstatus_to_exitcode(status) != 0:
                return -1
        return -1 if racing else deaths
    finally:
        for pid in racing:
            os.kill(pid, signal.SIGKILL)


def _fork(race: Race, name: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        race.run(name, killed_at_any_moment, KernelTimer(signal.SIGKILL).set)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def command(race: Race) -> Sequence[str]:
    """Return the command that runs ``race`` in separate processes."""
    return [sys.executable, "-m", "tests.records.racers", json.dumps(asdict(race))]


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print(main(Race(**json.loads(sys.argv[1]))))
