"""Run hostile inputs in a forked child with limits on time and memory, and check the outcome.

A table of inputs is one test::

    def test_no_path_means_more_than_a_place(sandbox: Path) -> None:
        deeds = named(["reference://::http://127.0.0.1/x", "gs://me:hunter2hunter2@bucket/x"], file_system_at)
        attack_all(deeds, sandbox, lambda done: done.must_be_refused(UnusablePathError, secrets=["hunter2hunter2"]))

A deed is a call with a hostile input. ``sandbox``, a fixture of this folder, has the folder ``own``, in which the deed
runs and may write, and the folder ``outside``, in which no deed may change a file. The harness records and forbids
programs, shells and connections unless the test allows them.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import select
import shutil
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tradewind.steps import truncated_repr

MAX_S = 15.0
"""Timeout of a deed in seconds. Deeds need far less, but the machine may be slow."""
_MAX_MEMORY_BYTES = 2 << 30
_MAX_FILE_BYTES = 256 << 20
_MAX_MESSAGE = 2000
_MAX_NAME = 80
_WATCHED = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
_NUMBER = struct.Struct("!Q")

Deed = Callable[[], Any]


class OutOfBoundsError(BaseException):
    """The deed began a forbidden action. A ``BaseException``, so that no handler takes it for a refusal."""


@dataclass(frozen=True)
class Outcome:
    """The result of a deed.

    Attributes:
        name: The name of the case.
        kind: ``returned``, ``raised``, ``hung`` or ``died``.
        value: The returned value, by ``repr``.
        error: The type of the raised error, and all its bases.
        message: The message of the raised error.
        trace: The traceback of the raised error.
        output: The text that the deed printed or logged to the console.
        seconds: The duration of the deed.
        events: The events of ``_WATCHED`` that the deed attempted.
        changed: Files outside ``own`` that the deed added, removed or changed.
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

    def must_be_harmless(self, *, secrets: Iterable[str] = (), events: Iterable[str] = ()) -> None:
        """Check that the deed ended, showed no secret, changed no file outside and ran no other program."""
        assert self.kind in ("returned", "raised"), f"it {self.kind} after {self.seconds:.1f} s\n{self.output}"
        assert not self.changed, f"changed outside: {self.changed}"
        assert set(self.events) <= set(events), f"tried: {self.events}"
        for secret in secrets:
            assert secret not in self.message + self.output + self.value, f"shows the secret {secret!r}"

    def must_be_refused(
        self, *types: type[BaseException], secrets: Iterable[str] = (), mentions: Iterable[str] = ()
    ) -> None:
        """Check that the deed was harmless and raised one of these types with a clear sentence."""
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
        """Check that the deed was harmless and returned: valid input that looks hostile must work."""
        self.must_be_harmless(secrets=secrets)
        assert self.kind == "returned", f"{self.error[0]}: {self.message}\n{self.trace}"
        assert value is None or self.value == value, f"returned {self.value} instead of {value}"


def named(values: Iterable[Any], *deeds: Callable[[Any], Any]) -> dict[str, Deed]:
    """Return a case for each value and deed, by the value's number and ``repr``."""
    return {
        f"{number} {truncated_repr(value)[:_MAX_NAME]}" + (f" ({at})" if len(deeds) > 1 else ""): partial(deed, value)
        for number, value in enumerate(values)
        for at, deed in enumerate(deeds)
    }


def attack(deed: Deed, sandbox: Path, *, seconds: float = MAX_S, allow: Iterable[str] = ()) -> Outcome:
    """Do ``deed`` in a child of its own and return the outcome.

    Args:
        deed: The call to try; its result need not be picklable.
        sandbox: A folder with the folders ``own`` and ``outside``.
        seconds: Timeout, after which the deed counts as hung.
        allow: Events of ``_WATCHED`` that the deed may cause.
    """
    child = _Child([deed], sandbox, frozenset(allow))
    try:
        return child.outcome(0, "it", seconds)
    finally:
        child.end()


def attack_all(
    cases: Mapping[str, Deed],
    sandbox: Path,
    judge: Callable[[Outcome], None],
    *,
    prepare: Callable[[str], Any] | None = None,
    seconds: float = MAX_S,
) -> None:
    """Do the deeds in sequence in one child, and judge each before the next begins.

    If a deed ends the child or hangs, a new child does the deeds that follow.

    Args:
        cases: Name -> deed.
        sandbox: As for ``attack``.
        judge: Raises ``AssertionError`` for a wrong outcome. This process calls it.
        prepare: This process calls it with the name before each case; the folder ``own`` is empty then.
        seconds: Timeout, after which a deed counts as hung.

    Raises:
        AssertionError: Names every wrong case and the reason.
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
                child = _Child([*cases.values()], sandbox, frozenset())
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


class _Child:
    """A forked process that does each deed on request of the parent."""

    def __init__(self, deeds: list[Deed], sandbox: Path, allow: frozenset[str]) -> None:
        self._sandbox = sandbox
        self._output, self._record = sandbox / "output", sandbox / "events"
        self._output.touch()
        self._record.touch()
        self._contents = _contents(sandbox)
        self.is_over = False
        asked, self._ask = os.pipe()
        self._report, report = os.pipe()
        self._id = os.fork()
        if self._id == 0:
            os.close(self._ask)
            os.close(self._report)
            _Life(sandbox / "own", self._output, self._record, allow).live(deeds, asked, report)
        os.close(asked)
        os.close(report)

    def outcome(self, number: int, name: str, seconds: float) -> Outcome:
        began = time.monotonic()
        with suppress(BrokenPipeError):  # the child died between two deeds; the report says so
            os.write(self._ask, _NUMBER.pack(number))
        said = self._said(began + seconds)
        self.is_over = said.pop("is_last")
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
        return Outcome(**said, name=name, output=printed, seconds=took, events=tried, changed=changed)

    def _said(self, deadline: float) -> dict[str, Any]:
        """Return the child's report if it is complete, else the reason why it is not."""
        nothing = {"value": "", "error": (), "message": "", "trace": "", "is_last": True}
        parts = b""
        size: int | None = None
        while size is None or len(parts) < size:
            ready, _, _ = select.select([self._report], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return {"kind": "hung", **nothing}
            part = os.read(self._report, 1 << 16)
            if not part:
                return {"kind": "died", **nothing}
            parts += part
            if size is None and len(parts) >= _NUMBER.size:
                (size,) = _NUMBER.unpack(parts[: _NUMBER.size])
                parts = parts[_NUMBER.size :]
        said: dict[str, Any] = pickle.loads(parts)
        return said

    def _kill(self) -> None:
        if self._id:
            with suppress(ProcessLookupError):
                os.killpg(self._id, signal.SIGKILL)
            os.waitpid(self._id, 0)
            self._id = 0

    def end(self) -> None:
        self._kill()
        os.close(self._ask)
        os.close(self._report)
        self._output.unlink()
        self._record.unlink()


class _Life:
    """The child's process from the fork to its end."""

    def __init__(self, own: Path, output: Path, record: Path, allow: frozenset[str]) -> None:
        os.setsid()
        self._own = own
        for stream in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        events = os.open(record, os.O_WRONLY | os.O_APPEND)

        def watch(event: str, _args: Any) -> None:
            if event in _WATCHED and event not in allow:
                os.write(events, f"{event}\n".encode())
                raise OutOfBoundsError(event)

        sys.addaudithook(watch)

    def live(self, deeds: list[Deed], asked: int, report: int) -> NoReturn:
        while number := os.read(asked, _NUMBER.size):
            said = self._do(deeds[_NUMBER.unpack(number)[0]])
            sys.stdout.flush()
            sys.stderr.flush()
            # A surviving thread would run during the next deed, which would then be blamed.
            said["is_last"] = any(not thread.daemon for thread in threading.enumerate()[1:])
            answer = pickle.dumps(said)
            with os.fdopen(report, "wb", closefd=False) as pipe:
                pipe.write(_NUMBER.pack(len(answer)) + answer)
        os._exit(0)

    def _do(self, deed: Deed) -> dict[str, Any]:
        os.chdir(self._own)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + _MAX_MEMORY_BYTES, hard))
        said: dict[str, Any] = {"kind": "raised", "value": "", "error": (), "message": "", "trace": ""}
        try:
            said |= {"kind": "returned", "value": repr(deed())[:_MAX_MESSAGE]}
        except BaseException as error:
            names = tuple(f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__)
            said |= {"error": names, "message": str(error), "trace": "".join(traceback.format_exception(error)[-20:])}
        return said


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _contents(sandbox: Path) -> dict[str, str]:
    """Map each entry outside ``own``, except the harness's own files, to its contents."""
    found = {}
    for folder, folders, files in os.walk(sandbox):
        if Path(folder) == sandbox:
            folders[:] = [name for name in folders if name != "own"]
            files = [name for name in files if name not in ("output", "events")]
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(sandbox))] = _content(path)
    return found


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
