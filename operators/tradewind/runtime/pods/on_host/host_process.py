"""One process on a host: started under a guard in a group of its own, its output kept, its end told once.

The process is in the hands of ``process_guard``, which ends it when the actor that started it or the Ray node under it
dies. The whole output goes to the host's log; the driver gets it in portions, from hosts other than the first one only
the end. In neither are the values of the secrets that its environment names.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from tradewind.calls.masking import Masker, StreamMasker
from tradewind.runtime.driver.process_guard import GRACE_S, guarded, kill_descendants
from tradewind.runtime.driver.stored_log import StoredLog
from tradewind.runtime.driver.term import Term
from tradewind.runtime.pods.environment import LineSplitter

LAST_LINES: Final = 200
MOST_LINES: Final = 10_000  # kept for a driver that does not fetch them
_DRAIN_S: Final = 2.0


class HostProcess:
    """Starts at once; one that ``waits`` goes on when it gets a line.

    ``changed`` is notified when there are lines, and at the end.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: StoredLog,
        *,
        keep_lines: int,
        watch: int,
        changed: threading.Condition,
        term: Term,
        is_spare: bool = False,
    ) -> None:
        self._keep = keep_lines
        self._log = log
        self._raylet = watch
        self._changed = changed
        self._term = term
        self._masked = StreamMasker(Masker.of_environment(env))
        self._lines: deque[str] = deque()
        self._left_out = 0
        self.exit_code: int | None = None
        """None while it runs, and for ever if the Ray node died."""
        self.is_over = False
        self.was_ended = False
        """It was ended by us, so that its exit code tells nothing."""
        self._guard = subprocess.Popen(
            guarded(command, watch=[watch], with_input=is_spare, term=term.descriptor),
            env=dict(env),
            stdin=subprocess.PIPE if is_spare else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[term.descriptor],
        )
        threading.Thread(target=self._pump, daemon=True, name="output").start()

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    def go(self, line: str, keep_lines: int, log: StoredLog) -> bool:
        """Let a process that waits go on; whether it was still there."""
        assert self._guard.stdin is not None
        with self._changed:
            self._keep, self._log = keep_lines, log
        try:
            self._guard.stdin.write(line.encode() + b"\n")
            self._guard.stdin.close()
        except OSError:
            return False
        return not self.is_over

    def take_lines(self) -> tuple[str, ...]:
        """What has been printed since the last time; the caller holds ``changed``."""
        lines = list(self._lines)
        if self._left_out and self._keep == MOST_LINES:
            lines.insert(0, f"[{self._left_out} lines left out here; they are in the host's log]")
        self._lines.clear()
        self._left_out = 0
        return tuple(lines)

    def kill(self) -> None:
        """End the process and all that descends from it at once."""
        self._mark_ended()
        kill_descendants(self._guard.pid)
        _kill_group(self._guard)

    def end(self) -> None:
        """End the whole group politely; the guard ends it for good after its grace period."""
        self._mark_ended()
        self._guard.terminate()
        if not self.wait(GRACE_S + 2 * _DRAIN_S):
            _kill_group(self._guard)
            self.wait(_DRAIN_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, timeout=timeout_s)

    def bring_log_home(self) -> None:
        self._log.bring_home()

    def _mark_ended(self) -> None:
        with self._changed:
            self.was_ended = self.was_ended or not self.is_over

    def _pump(self) -> None:
        """Move the output to the log and to whoever asks, until the process has ended, and tell how."""
        guard = self._guard
        assert guard.stdout is not None
        splitter = LineSplitter()
        for data in _read_until_ended(guard.stdout, guard):
            self._keep_output(self._masked.feed(data), splitter)
        self._keep_output(self._masked.end(), splitter)
        self._add(splitter.end())
        code = guard.wait()
        _kill_group(guard)  # only if the guard itself was killed is anyone left
        self._log.close()
        with self._changed:
            node_died = os.getppid() != self._raylet
            self.exit_code = None if node_died else code
            self.is_over = True
            self.was_ended = self.was_ended or self._term.has_ended(guard.pid)
            self._changed.notify_all()

    def _keep_output(self, data: bytes, splitter: LineSplitter) -> None:
        self._log.write(data)
        self._add(splitter.feed(data))

    def _add(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        with self._changed:
            self._lines.extend(lines)
            while len(self._lines) > self._keep:
                self._lines.popleft()
                self._left_out += 1
            self._changed.notify_all()


def _read_until_ended(output: IO[bytes], guard: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The output until its end; soon after the guard's end even if a stray process still holds the pipe."""
    descriptor = output.fileno()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN | select.POLLHUP)
    guard_end = os.pidfd_open(guard.pid)
    poller.register(guard_end, select.POLLIN)
    deadline: float | None = None
    try:
        while deadline is None or time.monotonic() < deadline:
            ready = {descriptor for descriptor, _ in poller.poll(None if deadline is None else _DRAIN_S * 1000)}
            if guard_end in ready and deadline is None:
                deadline = time.monotonic() + _DRAIN_S
                poller.unregister(guard_end)
            if descriptor in ready:
                data = os.read(descriptor, 65536)
                if not data:
                    return
                yield data
    finally:
        os.close(guard_end)


def _kill_group(guard: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(guard.pid, signal.SIGKILL)
