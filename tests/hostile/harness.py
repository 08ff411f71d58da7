"""Hostile inputs: each is tried in a forked child, limited in time and memory, and judged by what it left.

A module of cases is a table of inputs and one test over it::

    @pytest.mark.parametrize("path", ["reference://::http://127.0.0.1/x", "gs://me:hunter2hunter2@bucket/x"])
    def test_no_path_means_more_than_a_place(path: str, sandbox: Path) -> None:
        attack(lambda: file_system_at(path), sandbox).must_be_refused(UnusablePathError, secrets=["hunter2hunter2"])

``sandbox`` (a fixture of this folder) has the folder ``work``, in which the deed runs and may write, and the folder
``outside``, in which nothing may change. Programs, shells and connections are recorded and forbidden unless the deed's
test allows them.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

LONGEST_S = 15.0
"""A deed that takes longer hangs. Far more than any deed here needs, since machines are slow at times."""
_MOST_MEMORY_BYTES = 2 << 30
_LARGEST_FILE_BYTES = 256 << 20
_LONGEST_MESSAGE = 2000
_WATCHED = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")


class OutOfBoundsError(BaseException):
    """The deed began something that it must not do. No ``Exception``, so that nothing takes it for a refusal."""


@dataclass(frozen=True)
class Outcome:
    """What became of a deed.

    Attributes:
        kind: ``returned``, ``raised``, ``hung`` or ``died``.
        value: What was returned, by ``repr``.
        error: The type of what was raised, and of all its bases.
        message: Of what was raised.
        trace: Where it was raised.
        output: All that was printed or logged to the console.
        seconds: How long it took.
        events: What of ``_WATCHED`` was tried.
        changed: Files outside ``work`` that are new, gone or different.
    """

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
        """Whatever came of it, it ended by itself, showed no secret, changed nothing outside and ran nothing else."""
        assert self.kind in ("returned", "raised"), f"it {self.kind} after {self.seconds:.1f} s\n{self.output}"
        assert not self.changed, f"changed outside: {self.changed}"
        assert set(self.events) <= set(events), f"tried: {self.events}"
        for secret in secrets:
            assert secret not in self.message + self.output + self.value, f"shows the secret {secret!r}"

    def must_be_refused(
        self, *types: type[BaseException], secrets: Iterable[str] = (), mentions: Iterable[str] = ()
    ) -> None:
        """It was harmless, and ended in one clear sentence of one of these types."""
        self.must_be_harmless(secrets=secrets)
        assert self.kind == "raised", f"accepted: {self.value}"
        wanted = {f"{one.__module__}.{one.__qualname__}" for one in types}
        assert wanted & set(self.error), f"{self.error[0]}: {self.message}\n{self.trace}"
        assert self.message.strip(), "says nothing"
        assert len(self.message) <= _LONGEST_MESSAGE, f"{len(self.message)} characters: {self.message[:200]}"
        assert "Traceback" not in self.message
        for text in mentions:
            assert text in self.message, f"does not mention {text!r}: {self.message}"

    def must_be_accepted(self, *, secrets: Iterable[str] = ()) -> None:
        """It was harmless and returned: what looks hostile and is not must go on working."""
        self.must_be_harmless(secrets=secrets)
        assert self.kind == "returned", f"{self.error[0]}: {self.message}\n{self.trace}"


def attack(deed: Callable[[], Any], sandbox: Path, *, seconds: float = LONGEST_S, allow: Iterable[str] = ()) -> Outcome:
    """Do ``deed`` in a child of its own and say what became of it.

    Args:
        deed: What to try; its result need not be picklable.
        sandbox: A folder with the folders ``work`` and ``outside``.
        seconds: After how long it counts as hung.
        allow: Of ``_WATCHED``, what it may do.
    """
    before = _contents(sandbox)
    output, record = sandbox / "output", sandbox / "events"
    output.touch()
    record.touch()
    result, report = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(result)
        _do(deed, sandbox / "own", output, record, report, frozenset(allow))
    os.close(report)
    answer, kind = _answer(result, began + seconds)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    took = time.monotonic() - began
    said = answer or {"kind": kind, "value": "", "error": (), "message": "", "trace": ""}
    printed = output.read_text(errors="replace")
    tried = tuple(record.read_text().split())
    output.unlink()
    record.unlink()
    after = _contents(sandbox)
    changed = tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))
    return Outcome(**said, output=printed, seconds=took, events=tried, changed=changed)


def _answer(result: int, deadline: float) -> tuple[dict[str, Any] | None, str]:
    """What the child sent, if it sent all of it, else how it failed to."""
    parts: list[bytes] = []
    try:
        while True:
            ready, _, _ = select.select([result], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None, "hung"
            part = os.read(result, 1 << 16)
            if not part:
                break
            parts.append(part)
    finally:
        os.close(result)
    return (pickle.loads(b"".join(parts)), "") if parts else (None, "died")


def _do(
    deed: Callable[[], Any], work: Path, output: Path, record: Path, report: int, allow: frozenset[str]
) -> NoReturn:
    """The child's life."""
    os.setsid()
    os.chdir(work)
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + _MOST_MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    events = os.open(record, os.O_WRONLY | os.O_APPEND)

    def watch(event: str, _args: Any) -> None:
        if event in _WATCHED and event not in allow:
            os.write(events, f"{event}\n".encode())
            raise OutOfBoundsError(event)

    sys.addaudithook(watch)
    said: dict[str, Any] = {"kind": "raised", "value": "", "error": (), "message": "", "trace": ""}
    try:
        said |= {"kind": "returned", "value": repr(deed())[:_LONGEST_MESSAGE]}
    except BaseException as error:
        names = tuple(f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__)
        said |= {"error": names, "message": str(error), "trace": "".join(traceback.format_exception(error)[-20:])}
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(report, "wb") as pipe:
        pipe.write(pickle.dumps(said))
    os._exit(0)


def _contents(sandbox: Path) -> dict[str, str]:
    """Every entry outside ``work``, with what it holds."""
    found = {}
    for folder, folders, files in os.walk(sandbox):
        if Path(folder) == sandbox:
            folders[:] = [name for name in folders if name != "own"]
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(sandbox))] = _content(path)
    return found


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
