"""What a file may not do while its steps are made: talk to a network, start processes or threads, read secrets, run on.

Python tells an audit hook of all of these before they happen. The hook stays for the life of the process, and asks one
thing of each event: whether this thread is loading a file.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from tradewind.marin.refusals import notes, refuse

_SOCKETS = "it opens a network connection while the steps are made: let a step's function do it"
_PROCESSES = "it starts a process while the steps are made: let a step's function do it"
_FILES = "it deletes files while the steps are made: let a step's function do it"
_EVENTS = {
    "socket.__new__": _SOCKETS,
    "socket.connect": _SOCKETS,
    "socket.getaddrinfo": _SOCKETS,
    "socket.gethostbyname": _SOCKETS,
    "subprocess.Popen": _PROCESSES,
    "os.system": _PROCESSES,
    "os.exec": _PROCESSES,
    "os.fork": _PROCESSES,
    "os.forkpty": _PROCESSES,
    "os.posix_spawn": _PROCESSES,
    "os.spawn": _PROCESSES,
    "os.kill": "it signals a process while the steps are made",
    "os.remove": _FILES,
    "os.rmdir": _FILES,
    "shutil.rmtree": _FILES,
}
_SECRET_NAMES = frozenset(
    {".netrc", ".env", "credentials", "application_default_credentials.json", "id_rsa", "id_ed25519", "airflow.cfg"}
)
_SECRET_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", "gcloud"})


_AGAIN_S = 0.2


class OutOfTime(BaseException):
    """The file that a thread is loading takes too long."""


class _Guarded(threading.local):
    is_loading = False


_guarded = _Guarded()
_install_once = threading.Lock()
_is_installed = False


def _checked_start(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``threading`` starts its threads with this while a file is loaded; Python 3.11 has no audit event for them."""
    if _guarded.is_loading:
        raise refuse("it starts a thread while the steps are made: let a step's function do it.")
    return _start_new_thread(function, *args, **kwargs)


_start_new_thread = _thread.start_new_thread


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _guarded.is_loading:
        return
    if event == "open":
        _check_opened(args[0])
    elif (reason := _EVENTS.get(event)) is not None:
        raise refuse(f"{reason}.")


def _check_opened(path: Any) -> None:
    if isinstance(path, str):
        parts = PurePath(path).parts
        if parts and (parts[-1] in _SECRET_NAMES or ".huggingface" in parts or not _SECRET_FOLDERS.isdisjoint(parts)):
            raise refuse(f"it reads the secret file {parts[-1]} while the steps are made.")
        notes.opened.add(path)


@contextmanager
def guarded(limit_s: float) -> Iterator[None]:
    """Guard this thread, and end what it does after ``limit_s`` seconds.

    Raises:
        OutOfTime: In the body.
    """
    global _is_installed
    with _install_once:
        if not _is_installed:
            sys.addaudithook(_audit)
            _is_installed = True
    watch = _Watch(threading.get_ident(), limit_s)
    watch.start()
    starts = vars(threading)["_start_new_thread"]
    vars(threading)["_start_new_thread"] = _checked_start
    _guarded.is_loading = True
    try:
        yield
    finally:
        _guarded.is_loading = False
        vars(threading)["_start_new_thread"] = starts
        watch.end()
    if watch.has_fired:
        raise OutOfTime  # a bare except has swallowed it


class _Watch(threading.Thread):
    """Interrupts another thread when its time is up, again and again, for a bare ``except`` may swallow it."""

    def __init__(self, thread: int, limit_s: float) -> None:
        super().__init__(daemon=True)
        self.has_fired = False
        self._interrupted, self._limit_s = thread, limit_s
        self._done = threading.Event()

    def run(self) -> None:
        wait_s = self._limit_s
        while not self._done.wait(wait_s):
            self.has_fired = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._interrupted), ctypes.py_object(OutOfTime))
            wait_s = _AGAIN_S

    def end(self) -> None:
        """Stop, in the thread that is interrupted; an interruption that is still to come is caught here.

        It cannot be taken back: Python 3.11 then looks for it at every step, and without end under a profiler.
        """
        is_over = False
        while not is_over:
            try:
                self._done.set()
                self.join()
                is_over = not self.is_alive()  # a call, at which what is still to come does come
            except OutOfTime:
                pass
