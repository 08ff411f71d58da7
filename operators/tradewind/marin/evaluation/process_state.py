"""What of this process a file may change while it is loaded, put back as it was."""

from __future__ import annotations

import decimal
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tradewind.marin.evaluation.module_state import ModuleState
from tradewind.marin.world.import_map import World

_SYS = (
    "argv", "path", "meta_path", "path_hooks", "stdout", "stderr", "stdin", "excepthook", "displayhook",
    "unraisablehook", "breakpointhook",
)  # fmt: skip

_SOON_S = 0.05
_SELDOM = 30

ForFile = Callable[[World, list[str]], AbstractContextManager[None]]


@contextmanager
def kept_process() -> Iterator[ForFile]:
    """Put all back at the end. To look at everything takes longer than to run a file, so many are run in one.

    Yields:
        What each file is run in: it finds a checkout as its folder, and a command line; what the next file or our own
        code would stumble over is put back after it.
    """
    soon = [_kept_sys(), _kept_warnings(), _kept_hooks(), _kept_timers(), _kept_environment()]
    late = [
        _kept_modules(),
        _kept_decimal(),
        _kept_logging(),
        _kept_random(),
        _kept_folder(),
        _kept_locale(),
    ]
    was_collecting = gc.isenabled()
    modules = ModuleState()
    modules.note()

    @contextmanager
    def for_file(world: World, argv: list[str]) -> Iterator[None]:
        sys.argv, sys.path = list(argv), list(sys.path)
        os.chdir(world.root)
        known = set(world.modules)
        modules.note(world.builtins.modules())
        world.noting = modules.note
        try:
            yield
        finally:
            for put_back in soon:
                put_back()
            if modules.put_back():  # by what it imported, perhaps, which the next file has to do again
                world.forget(set(world.modules) - known)
            (gc.enable if was_collecting else gc.disable)()

    try:
        yield for_file
    finally:
        for put_back in late:
            put_back()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Python looks for old garbage more seldom meanwhile, and as before afterwards, whatever a file says.

    Nearly all of the millions of values that are made stay, and to look through them takes an eighth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], before[2] * _SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _kept_sys() -> Callable[[], None]:
    before = {name: getattr(sys, name) for name in _SYS}
    contents = {name: list(value) for name, value in before.items() if isinstance(value, list)}
    limit = sys.getrecursionlimit()

    def put_back() -> None:
        for name, value in before.items():
            setattr(sys, name, value)
        for name, items in contents.items():
            before[name][:] = items
        sys.setrecursionlimit(limit)

    return put_back


def _kept_hooks() -> Callable[[], None]:
    before, shown, timeout = sys.gettrace(), threading.excepthook, socket.getdefaulttimeout()
    profile, interval = sys.getprofile(), sys.getswitchinterval()
    is_main = threading.current_thread() is threading.main_thread()  # no other may say who hears a signal
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()} if is_main else {}

    def put_back() -> None:
        if sys.gettrace() is not before:
            sys.settrace(before)
        if sys.getprofile() is not profile:
            sys.setprofile(profile)
        sys.setswitchinterval(interval)
        threading.excepthook = shown
        socket.setdefaulttimeout(timeout)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    return put_back


def _kept_timers() -> Callable[[], None]:
    """Airflow ends a parse that takes too long by such a timer."""
    kinds = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    before, begun = {kind: signal.getitimer(kind) for kind in kinds}, time.monotonic()

    def put_back() -> None:
        passed = time.monotonic() - begun
        for kind, (left, interval) in before.items():
            expected = max(left - passed, _SOON_S) if left else 0.0
            if not left - passed - _SOON_S <= signal.getitimer(kind)[0] <= left + interval:
                signal.setitimer(kind, expected, interval)

    return put_back


def _kept_modules() -> Callable[[], None]:
    before = dict(sys.modules)

    def put_back() -> None:
        for name, module in before.items():  # what was imported since stays: it is real
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
        for name in [name for name in sys.modules if name not in before]:
            if getattr(sys.modules[name], "__spec__", None) is None:  # put there by hand
                del sys.modules[name]

    return put_back


def _kept_locale() -> Callable[[], None]:
    before = locale.setlocale(locale.LC_ALL)

    def put_back() -> None:
        locale.setlocale(locale.LC_ALL, before)

    return put_back


def _kept_decimal() -> Callable[[], None]:
    before = decimal.getcontext().copy()
    return lambda: decimal.setcontext(before)


def _kept_folder() -> Callable[[], None]:
    before = os.getcwd()
    return lambda: os.chdir(before)


def _kept_environment() -> Callable[[], None]:
    before = dict(os.environ)

    def put_back() -> None:
        if dict(os.environ) != before:  # posix.environ is the dictionary in it
            os.environ.clear()
            os.environ.update(before)

    return put_back


def _kept_random() -> Callable[[], None]:
    before = random.getstate()
    return lambda: random.setstate(before)


def _kept_warnings() -> Callable[[], None]:
    before, shown = warnings.filters[:], warnings.showwarning

    def put_back() -> None:
        if warnings.filters != before:
            warnings.filters[:] = before  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        warnings.showwarning = shown

    return put_back


def _kept_logging() -> Callable[[], None]:
    root = logging.getLogger()
    loggers = [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]
    before: list[tuple[logging.Logger, Any, Any, Any, Any, Any]] = [
        (each, each.level, each.handlers[:], each.filters[:], each.propagate, each.disabled) for each in loggers
    ]
    disabled, factory, kind = root.manager.disable, logging.getLogRecordFactory(), logging.getLoggerClass()
    known = set(root.manager.loggerDict)

    def put_back() -> None:
        for each, level, handlers, filters, propagates, is_disabled in before:
            if each.level != level:
                each.setLevel(level)
            each.handlers[:], each.filters[:] = handlers, filters
            each.propagate, each.disabled = propagates, is_disabled
        for name in set(root.manager.loggerDict) - known:
            if isinstance(made := root.manager.loggerDict[name], logging.Logger):
                made.setLevel(logging.NOTSET)
                made.handlers.clear()
                made.filters.clear()
                made.propagate, made.disabled = True, False
        logging.disable(disabled)
        logging.setLogRecordFactory(factory)
        logging.setLoggerClass(kind)

    return put_back
