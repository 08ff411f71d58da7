"""Restrictions while a file builds steps: no network, processes, secrets or writes, and a time limit.

They prevent mistakes and are no security boundary: users who may edit the files may run code where Airflow parses them.

Python calls an audit hook before each of these actions. The hook stays for the life of the process. For each event it
checks one thing: whether this thread is loading a file.
"""

from __future__ import annotations

import _posixsubprocess
import _thread
import ctypes
import gc
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike, fsdecode
from pathlib import Path, PurePath
from typing import Any, Final

from tradewind.machine import limited_memory
from tradewind.marin.refusals import OutOfTime, SourceLine, notes, place_below, refuse

_OF_STEPS: Final = "while the steps are made: let a step's function do it"
_PROCESSES: Final = f"it starts a process {_OF_STEPS}"
_THREADS: Final = f"it starts a thread {_OF_STEPS}"
_REFUSED: Final = {
    f"it opens a network connection {_OF_STEPS}": (
        "socket.__new__", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname",
    ),
    _PROCESSES: (
        "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
    ),
    "it signals a process while the steps are made": ("os.kill", "os.killpg", "signal.pthread_kill"),
    f"it deletes files {_OF_STEPS}": ("os.remove", "os.rmdir", "shutil.rmtree"),
    f"it moves or changes files {_OF_STEPS}": (
        "os.rename", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.chown", "os.utime", "os.setxattr",
    ),
    f"it opens a database {_OF_STEPS}": ("sqlite3.connect",),
    "it changes the limits of this process": ("resource.setrlimit",),
    "it adds an audit hook, which cannot be removed": ("sys.addaudithook",),
    f"it calls a library of C {_OF_STEPS}": ("ctypes.dlopen",),
}  # fmt: skip
_EVENTS: Final = {event: reason for reason, events in _REFUSED.items() for event in events}
_SECRET_NAMES = frozenset(
    {
        ".netrc", ".env", ".pgpass", ".pypirc", ".git-credentials", "credentials", "credentials.json",
        "application_default_credentials.json", "id_rsa", "id_ed25519", "airflow.cfg",
    }
)  # fmt: skip
_SECRET_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".docker", ".huggingface", "gcloud", "secrets"})
_REPEAT_S = 0.2
_MAX_MEMORY_BYTES: Final = 512 << 20
_MAX_DEPTH: Final = 2_500
"""Maximum depth of nested calls; a stack of 8 MiB is enough for it, whatever they call."""
_WAKE: Final = signal.SIGURG
"""Interrupts a wait in C (a lock, a pipe) of the main thread, the only one to receive signals."""
_WRITES: Final = frozenset("wax+")
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Guarded(threading.local):
    is_loading = False


_guarded = _Guarded()
_install_once = threading.Lock()
_is_installed = False


def _checked(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Wrap a Python function that starts a process or thread; Python 3.11 has no audit event for these."""

    def start(*args: Any, **kwargs: Any) -> Any:
        if _guarded.is_loading:
            raise refuse(f"{what}.")
        return function(*args, **kwargs)

    return start


def _bounded(function: Callable[[int], None]) -> Callable[[int], None]:
    """Limit ``sys.setrecursionlimit``: deep recursion in C code would kill this process."""

    def set_limit(limit: int, /) -> None:
        function(min(limit, max(_MAX_DEPTH, sys.getrecursionlimit())) if _guarded.is_loading else limit)

    return set_limit


_OTHERS: Final = (
    *(
        (module, name, _checked(vars(module)[name], what))
        for module, name, what in (
            (threading, "_start_new_thread", _THREADS),
            (_thread, "start_new_thread", _THREADS),
            (_posixsubprocess, "fork_exec", _PROCESSES),
        )
    ),
    (sys, "setrecursionlimit", _bounded(sys.setrecursionlimit)),
)
"""Functions replaced while a file is loaded: module, name, replacement."""


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _guarded.is_loading:
        return
    if event == "open":
        _check_opened(*args)
    elif event in ("os.listdir", "os.scandir"):
        notes.note_opened(args[0] or ".")
    elif (reason := _EVENTS.get(event)) is not None and not _is_pythons_own(args):
        raise refuse(f"{reason}.")


def _check_opened(path: Any, mode: str | None, flags: int) -> None:
    if not isinstance(path, (str, bytes, PathLike)):
        return
    parts = PurePath(fsdecode(path)).parts
    if parts and (_is_secret(parts) or (parts[:2] == ("/", "proc") and parts[-1] == "environ")):
        raise refuse(f"it reads the secret file {parts[-1]} while the steps are made.")
    writes = not _WRITES.isdisjoint(mode) if mode is not None else bool(flags & _WRITING)
    if writes and parts[:2] != ("/", "dev") and not _is_pythons_own((path,)):
        raise refuse(f"it writes the file {parts[-1]} {_OF_STEPS}.")
    notes.note_opened(path)


def _is_secret(parts: tuple[str, ...]) -> bool:
    is_hubs = "huggingface" in parts and parts[-1] in ("token", "stored_tokens")
    return is_hubs or parts[-1] in _SECRET_NAMES or not _SECRET_FOLDERS.isdisjoint(parts)


def _is_pythons_own(paths: tuple[Any, ...]) -> bool:
    """Whether the paths are Python's own caches of compiled code."""
    return any("__pycache__" in PurePath(path).parts for path in paths if isinstance(path, str))


def _awake(number: int, frame: types.FrameType | None) -> None:
    """Handle the signal: a pending exception is raised as soon as this thread runs Python code."""


@contextmanager
def guarded(limit_s: float) -> Iterator[None]:
    """Guard this thread, and stop its work after ``limit_s`` seconds, or with too much memory.

    Raises:
        OutOfTime: In the body.
        MemoryError: In the body.
    """
    with limited_memory(_MAX_MEMORY_BYTES), _watched(limit_s):
        yield


@contextmanager
def _watched(limit_s: float) -> Iterator[None]:
    global _is_installed
    with _install_once:
        if not _is_installed:
            sys.addaudithook(_audit)
            _is_installed = True
    watch = _Watch(threading.get_ident(), limit_s)
    watch.start()
    before = [vars(module)[name] for module, name, _ in _OTHERS]
    handler = signal.signal(_WAKE, _awake) if watch.wakes else None
    for module, name, checked in _OTHERS:
        setattr(module, name, checked)
    _guarded.is_loading = True
    try:
        yield
    finally:
        _guarded.is_loading = False
        for (module, name, _), function in zip(_OTHERS, before, strict=True):
            setattr(module, name, function)
        watch.end()
        if watch.wakes:
            signal.signal(_WAKE, handler or signal.SIG_DFL)  # None: C code had set it
    if watch.has_fired:
        raise OutOfTime  # a bare except swallowed it


class _Watch(threading.Thread):
    """Interrupts another thread repeatedly after its time limit, because a bare ``except`` may swallow it."""

    def __init__(self, thread: int, limit_s: float) -> None:
        super().__init__(daemon=True)
        self.has_fired = False
        self._interrupted, self._limit_s = thread, limit_s
        self._done = threading.Event()
        self.wakes = threading.current_thread() is threading.main_thread()

    def run(self) -> None:
        wait_s = self._limit_s
        while not self._done.wait(wait_s):
            self.has_fired = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._interrupted), ctypes.py_object(OutOfTime))
            if self.wakes:
                signal.pthread_kill(self._interrupted, _WAKE)
            wait_s = _REPEAT_S

    def end(self) -> None:
        """Stop, called in the interrupted thread; a pending interruption is caught here.

        It cannot be revoked: Python 3.11 would then check for it at every step, and forever under a profiler.
        """
        is_over = False
        while not is_over:
            try:
                self._done.set()
                self.join()
                is_over = not self.is_alive()  # this call delivers a pending interruption
            except OutOfTime:
                pass


# Find the line that reads a value that varies between runs: clock, chance, process ID, address, machine.

_READS = {
    "now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime", "strftime", "ctime", "asctime",
    "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "urandom", "getrandbits", "random", "getpid", "id",
    "gettempdir", "mkdtemp", "token_hex", "uuid1", "uuid4", "gethostname", "uname", "cpu_count", "listdir",
}  # fmt: skip
_TAKES_A_TIME = {"strftime", "ctime", "asctime", "localtime", "gmtime"}
"""These read the clock only without a time argument; else the line that read the time is the cause."""


@contextmanager
def clock_reads(root: Path) -> Iterator[list[SourceLine]]:
    """Collect lines below ``root`` that read such a value in this thread meanwhile; certain ones first."""
    sure: list[SourceLine] = []
    maybe: list[SourceLine] = []
    found: list[SourceLine] = []

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or (name := getattr(argument, "__name__", "")) not in _READS:
            return
        reader: types.FrameType | None = frame
        while reader is not None and not (name == "id" and reader is not frame):  # the standard library often calls it
            if (place := place_below(root, reader.f_code.co_filename, reader.f_lineno)) is not None:
                (maybe if name in _TAKES_A_TIME else sure).append(place)
                return
            reader = reader.f_back

    before, was_collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # finalizers may read a clock, at an arbitrary line
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)
        (gc.enable if was_collecting else gc.disable)()
        found += [*sure, *maybe]
