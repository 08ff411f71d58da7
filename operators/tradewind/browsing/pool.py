"""A few readers' processes for a server: requests wait briefly for one, and are refused when too many wait.

A server's own threads are never taken for longer than the caller waits: each process has a thread of its own here.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tradewind.browsing.limits import GRACE_S, MAX_PAGE_BYTES, TIMEOUT_S
from tradewind.browsing.refusals import ERRORS, BusyError, StoreSilentError

PROCESSES: Final = 2
"""Readers of one server process: each takes some 100 MB, and a page asks for little at once."""
MAX_WAITING: Final = 8
"""Requests that wait for a reader; more of them are refused at once."""
MAX_WAIT_S: Final = 6.0
"""A request that has waited so long for a reader is refused."""
START_S: Final = 60.0
"""A process loads its modules in some 2 s, and much longer on a busy machine. No request's own time counts this."""
READY: Final = b"ready\n"
"""The first line of a process."""
_COMMAND: Final = (sys.executable, "-m", "tradewind.browsing.worker")
_MAX_BODY_BYTES: Final = 8 * MAX_PAGE_BYTES
_MAX_HEAD_BYTES: Final = 1 << 16

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """A reader's answer.

    Attributes:
        head: Media type and more, as the reader's process gives it.
        body: The content.
    """

    head: Mapping[str, Any]
    body: bytes


class Reader:
    """One process, started with its first request and again after its end. Only one thread may use it.

    Attributes:
        ready_at: When the process was ready, by the monotonic clock; 0.0 before the first.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_at = 0.0

    def start(self) -> None:
        """Start the process unless it runs, so that the next request need not wait for it.

        Raises:
            BusyError: It is not ready in time.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        self._process = process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        try:
            is_ready = self._line(process, time.monotonic() + START_S) == READY
        except TimeoutError:
            self.end()
            raise BusyError(
                f"The reader's process has not started for {START_S:.0f} s, since the API server's machine is busy. "
                "Try again in a moment."
            ) from None
        except (EOFError, OSError, ValueError):
            is_ready = False
        if not is_ready:
            self.end()
            raise BusyError("The reader's process ended while it started: the API server's machine lacks memory.")
        self.ready_at = time.monotonic()

    def ask(self, call: str, roots: Sequence[str], arguments: Mapping[str, Any], timeout_s: float) -> Answer:
        """Return the answer of the process.

        Raises:
            BrowsingError: It refused.
            BusyError: It has not started in time.
            StoreSilentError: It did not answer in time, or died.
        """
        request = {"call": call, "roots": list(roots), "arguments": dict(arguments), "timeout_s": timeout_s}
        line = json.dumps(request).encode() + b"\n"
        try:
            process = self._sent(line)
            until = time.monotonic() + timeout_s + GRACE_S
            head = json.loads(self._line(process, until))
            body = self._bytes(process, min(int(head["length"]), _MAX_BODY_BYTES), until)
        except TimeoutError:
            self.end()
            raise StoreSilentError(
                f"{arguments['path']}: the store has not answered for {timeout_s + GRACE_S:.0f} s. Try again later."
            ) from None
        except (OSError, ValueError, KeyError, EOFError):
            self.end()
            raise StoreSilentError(
                f"{arguments['path']}: the reader's process ended, since the file needs too much memory or its store "
                "does not answer. Download it, or try again later."
            ) from None
        if "error" in head:
            raise ERRORS[head["error"]](head["message"])
        return Answer(head, body)

    def end(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _sent(self, line: bytes) -> subprocess.Popen[bytes]:
        """Send a request to a process that lives; one that was idle may have ended."""
        for _ in range(2):
            self.start()
            process = self._process
            assert process is not None and process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
                return process
            except BrokenPipeError:
                self.end()
        raise EOFError

    def _line(self, process: subprocess.Popen[bytes], until: float) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            if len(data) > _MAX_HEAD_BYTES:
                raise ValueError("no answer")
            data += self._some(process, 1, until)
        return data

    def _bytes(self, process: subprocess.Popen[bytes], count: int, until: float) -> bytes:
        parts, left = [], count
        while left:
            parts.append(self._some(process, min(left, 1 << 20), until))
            left -= len(parts[-1])
        return b"".join(parts)

    def _some(self, process: subprocess.Popen[bytes], count: int, until: float) -> bytes:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], max(until - time.monotonic(), 0.0))[0]:
            raise TimeoutError
        data = os.read(process.stdout.fileno(), count)
        if not data:
            raise EOFError
        return data


class ReaderPool:
    """Readers with a queue each; a path goes to the reader that has seen it, unless that one is busy."""

    def __init__(self, processes: int = PROCESSES) -> None:
        self._readers = [Reader() for _ in range(processes)]
        self._threads = [ThreadPoolExecutor(1, f"tradewind-reader-{number}") for number in range(processes)]
        self._waiting = [0] * processes
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the idle processes, without a wait: a user who looks at a page soon asks for more."""
        for number in range(len(self._readers)):
            with self._lock:
                if self._waiting[number]:
                    continue
                self._waiting[number] += 1
            with suppress(BusyError):  # the interpreter ends
                self._queue(number, self._readers[number].start)

    def submit(
        self, call: str, roots: Sequence[str], arguments: Mapping[str, Any], timeout_s: float = TIMEOUT_S
    ) -> Future[Answer]:
        """Ask a reader; the future has its answer or its refusal.

        Raises:
            BusyError: Too many requests wait.
        """
        number = self._reserve(str(arguments["path"]))
        since, reader = time.monotonic(), self._readers[number]

        def ask() -> Answer:
            if time.monotonic() > max(since, reader.ready_at) + MAX_WAIT_S:
                raise _busy()
            return reader.ask(call, roots, arguments, timeout_s)

        return self._queue(number, ask)

    def end(self) -> None:
        """End all processes, after their present requests; a next request starts them again."""
        for thread, reader in zip(self._threads, self._readers, strict=True):
            thread.submit(reader.end).result()

    def _queue(self, number: int, act: Callable[[], T]) -> Future[T]:
        """Let a reader's thread act, for which ``_waiting`` already counts."""

        def counted() -> T:
            try:
                return act()
            finally:
                with self._lock:
                    self._waiting[number] -= 1

        try:
            return self._threads[number].submit(counted)
        except RuntimeError:  # the interpreter ends
            with self._lock:
                self._waiting[number] -= 1
            raise _busy() from None

    def _reserve(self, path: str) -> int:
        with self._lock:
            if sum(self._waiting) >= MAX_WAITING + len(self._readers):
                raise _busy()
            own = hash(path) % len(self._readers)
            number = min(range(len(self._readers)), key=lambda each: (self._waiting[each], each != own))
            self._waiting[number] += 1
            return number


def _busy() -> BusyError:
    return BusyError("All readers of this API server are busy. Try again in a few seconds.")


_shared: dict[int, ReaderPool] = {}
_shared_lock = threading.Lock()


def shared_pool() -> ReaderPool:
    """Return the pool of this process; a fork gets one of its own."""
    with _shared_lock:
        return _shared.setdefault(os.getpid(), ReaderPool()) if os.getpid() not in _shared else _shared[os.getpid()]
