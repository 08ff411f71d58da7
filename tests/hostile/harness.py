"""Run hostile inputs in a forked child with limits on time and memory, and check the outcome.

A table of inputs is one test::

    def test_store_refuses_unusable_paths(sandbox: Path) -> None:
        paths = ["reference://::http://127.0.0.1/x", "gs://me:hunter2hunter2@bucket/x"]
        expect_refusal(named(paths, file_system_at), sandbox, UnusablePathError, secrets=["hunter2hunter2"])

A case is a call with a hostile input. ``sandbox``, a fixture of this folder, has the folder ``own``, in which the call
runs and may write, and the folder ``outside``, in which no call may change a file. The harness records and forbids
programs, shells and connections.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tradewind.steps import truncated_repr

MAX_S = 15.0
"""Timeout of a call in seconds. Calls need far less, but the machine may be slow."""
_MAX_MEMORY_BYTES = 2 << 30
_MAX_FILE_BYTES = 256 << 20
_MAX_MESSAGE = 2000
_MAX_NAME = 80
_WATCHED = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
_NO_REPORT: dict[str, Any] = {"value": "", "error": (), "message": "", "trace": ""}

Call = Callable[[], Any]


class OutOfBoundsError(BaseException):
    """The call began a forbidden action. A ``BaseException``, so that no handler takes it for a refusal."""


@dataclass(frozen=True)
class Outcome:
    """The result of a call.

    Attributes:
        kind: ``returned``, ``raised``, ``hung`` or ``died``.
        value: The returned value, by ``repr``.
        error: The type of the raised error, and all its bases; ``message`` and ``trace`` are of that error.
        output: The text that the call printed or logged to the console.
        events: The events of ``_WATCHED`` that the call attempted.
        changed: Files outside ``own`` that the call added, removed or changed.
    """

    name: str
    kind: str
    value: str
    error: tuple[str, ...]
    message: str
    trace: str
    output: str
    seconds: float
    events: tuple[str, ...]
    changed: tuple[str, ...]

    def must_be_harmless(self, *, secrets: Iterable[str] = ()) -> None:
        """Check that the call ended, showed no secret, changed no file outside and ran no other program."""
        assert self.kind in ("returned", "raised"), f"it {self.kind} after {self.seconds:.1f} s\n{self.output}"
        assert not self.changed, f"changed outside: {self.changed}"
        assert not self.events, f"tried: {self.events}"
        for secret in secrets:
            assert secret not in self.message + self.output + self.value, f"shows the secret {secret!r}"

    def must_be_refused(
        self, *types: type[BaseException], secrets: Iterable[str] = (), mentions: Iterable[str] = ()
    ) -> None:
        """Check that the call was harmless and raised one of these types with a clear sentence."""
        self.must_be_harmless(secrets=secrets)
        assert self.kind == "raised", f"accepted: {self.value}"
        wanted = {f"{one.__module__}.{one.__qualname__}" for one in types}
        assert wanted & set(self.error), f"{self.error[0]}: {self.message}\n{self.trace}"
        assert self.message.strip(), "says nothing"
        assert len(self.message) <= _MAX_MESSAGE, f"{len(self.message)} characters: {self.message[:200]}"
        assert "Traceback" not in self.message
        for text in mentions:
            assert text in self.message, f"does not mention {text!r}: {self.message}"

    def must_be_accepted(self, value: str | None = None, *, secrets: Iterable[str] = ()) -> None:
        """Check that the call was harmless and returned: valid input that looks hostile must work."""
        self.must_be_harmless(secrets=secrets)
        assert self.kind == "returned", f"{self.error[0]}: {self.message}\n{self.trace}"
        assert value is None or self.value == value, f"returned {self.value} instead of {value}"


def named(values: Iterable[Any], *calls: Callable[[Any], Any]) -> dict[str, Call]:
    """Return a case for each value and call, by the value's number and ``repr``."""
    return {
        f"{number} {truncated_repr(value)[:_MAX_NAME]}" + (f" ({at})" if len(calls) > 1 else ""): partial(call, value)
        for number, value in enumerate(values)
        for at, call in enumerate(calls)
    }


def attack(call: Call, sandbox: Path, *, seconds: float = MAX_S) -> Outcome:
    """Make the call in a child of its own and return the outcome; its result need not be picklable."""
    child = _Child([call], sandbox)
    try:
        return child.outcome(0, "it", seconds)
    finally:
        child.end()


def attack_all(
    cases: Mapping[str, Call],
    sandbox: Path,
    judge: Callable[[Outcome], None],
    *,
    prepare: Callable[[str], Any] | None = None,
    seconds: float = MAX_S,
) -> None:
    """Make the calls in sequence in one child, and name all of whose outcome ``judge`` raises an ``AssertionError``.

    If a call ends the child or hangs for ``seconds``, a new child makes the calls that follow. This process calls
    ``prepare`` with the name before each case, when the folder ``own`` is empty, and ``judge`` after it.
    """
    assert cases, "no cases"
    wrong: list[str] = []
    child: _Child | None = None
    try:
        for number, name in enumerate(cases):
            if prepare is not None:
                _empty(sandbox / "own")
                prepare(name)
            if child is None:
                child = _Child([*cases.values()], sandbox)
            outcome = child.outcome(number, name, seconds)
            try:
                judge(outcome)
            except AssertionError as error:
                wrong.append(f"{name}: {str(error) or traceback.format_exc()}")
            if child.is_over:
                child.end()
                child = None
    finally:
        if child is not None:
            child.end()
    assert not wrong, f"{len(wrong)} of {len(cases)} cases:\n" + "\n".join(wrong)


def expect_refusal(
    cases: Mapping[str, Call],
    sandbox: Path,
    *types: type[BaseException],
    secrets: Iterable[str] = (),
    mentions: Iterable[str] = (),
    **options: Any,
) -> None:
    """Check that each case is refused, see ``Outcome.must_be_refused``; ``options`` are those of ``attack_all``."""
    attack_all(
        cases, sandbox, lambda outcome: outcome.must_be_refused(*types, secrets=secrets, mentions=mentions), **options
    )


def expect_success(
    cases: Mapping[str, Call], sandbox: Path, value: str | None = None, *, secrets: Iterable[str] = (), **options: Any
) -> None:
    """Check that each case returns, see ``Outcome.must_be_accepted``; ``options`` are those of ``attack_all``."""
    attack_all(cases, sandbox, lambda outcome: outcome.must_be_accepted(value, secrets=secrets), **options)


class _Child:
    """A forked process that makes each call on request of the parent."""

    def __init__(self, calls: list[Call], sandbox: Path) -> None:
        self._sandbox = sandbox
        self._output, self._record = sandbox / "output", sandbox / "events"
        self._output.touch()
        self._record.touch()
        self._contents = _contents(sandbox)
        self.is_over = False
        context = multiprocessing.get_context("fork")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=self._serve, args=(calls, end))
        self._process.start()
        self._group = self._process.pid or 0
        end.close()

    def outcome(self, number: int, name: str, seconds: float) -> Outcome:
        began = time.monotonic()
        report = self._report(number, seconds)
        self.is_over = report.pop("is_last")
        if self.is_over:
            self._kill()
        took = time.monotonic() - began
        printed = self._output.read_text(errors="replace")
        tried = tuple(self._record.read_text().split())
        os.truncate(self._output, 0)
        os.truncate(self._record, 0)
        before, self._contents = self._contents, _contents(self._sandbox)
        names = before.keys() | self._contents.keys()
        changed = tuple(sorted(file for file in names if before.get(file) != self._contents.get(file)))
        return Outcome(**report, name=name, output=printed, seconds=took, events=tried, changed=changed)

    def _report(self, number: int, seconds: float) -> dict[str, Any]:
        """Return the child's report, or the reason why there is none."""
        kind = "hung"
        try:
            self._pipe.send(number)
            if self._pipe.poll(seconds):
                report: dict[str, Any] = self._pipe.recv()
                return report
        except (EOFError, ConnectionError):
            kind = "died"
        return {**_NO_REPORT, "kind": kind, "is_last": True}

    def _serve(self, calls: list[Call], pipe: Connection) -> None:
        self._pipe.close()
        _limit(self._output, self._record)
        while True:
            report = _try(calls[pipe.recv()], self._sandbox / "own")
            sys.stdout.flush()
            sys.stderr.flush()
            # A surviving thread would run during the next call, which would then be blamed.
            report["is_last"] = any(not thread.daemon for thread in threading.enumerate()[1:])
            pipe.send(report)

    def _kill(self) -> None:
        if self._group:
            with suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._group = 0

    def end(self) -> None:
        self._kill()
        self._pipe.close()
        self._output.unlink()
        self._record.unlink()


def _limit(output: Path, record: Path) -> None:
    """Redirect the output of this child, limit its files, and record and forbid the events of ``_WATCHED``."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    events = os.open(record, os.O_WRONLY | os.O_APPEND)

    def watch(event: str, _args: Any) -> None:
        if event in _WATCHED:
            os.write(events, f"{event}\n".encode())
            raise OutOfBoundsError(event)

    sys.addaudithook(watch)


def _try(call: Call, own: Path) -> dict[str, Any]:
    os.chdir(own)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + _MAX_MEMORY_BYTES, hard))
    try:
        return {**_NO_REPORT, "kind": "returned", "value": repr(call())[:_MAX_MESSAGE]}
    except BaseException as error:
        names = tuple(f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__)
        trace = "".join(traceback.format_exception(error)[-20:])
        return {**_NO_REPORT, "kind": "raised", "error": names, "message": str(error), "trace": trace}


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _contents(sandbox: Path) -> dict[str, str]:
    """Map each entry outside ``own``, except the harness's own files, to its contents."""
    contents = {}
    for folder, folders, files in os.walk(sandbox):
        if Path(folder) == sandbox:
            folders[:] = [name for name in folders if name != "own"]
            files = [name for name in files if name not in ("output", "events")]
        for name in (*folders, *files):
            path = Path(folder, name)
            contents[str(path.relative_to(sandbox))] = _content(path)
    return contents


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
