"""State of this process that a loaded file may change, restored afterwards."""

from __future__ import annotations

import decimal
import gc
import itertools
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import is_, methodcaller
from typing import Any, Final

from tradewind.marin.sandbox.import_map import ModuleSandbox

# Restore a file's assignments in shared modules: ``json.dumps``, ``pathlib.Path.exists``.
#
# Modules also change their own state while they are used. A private name that is no function belongs to the module. So
# does a name added with a value of the module's own, such as a submodule imported since.

_TOPS: Final = sys.stdlib_module_names | {"tradewind"}
_HEAP: Final = 1 << 9
_IMMUTABLE: Final = 1 << 8
_MISSING: Final = object()
_VALUES: Final = methodcaller("values")
Owner = types.ModuleType | type


class ModuleState:
    """The names of modules and of their classes, as first recorded."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._before: list[tuple[Owner, dict[str, Any]]] = []
        self._noted: set[int] = set()
        self._now: list[Mapping[str, Any]] = []
        self._sizes: list[int] = []
        self._values: list[Any] = []

    def note(self, modules: Iterable[types.ModuleType] = ()) -> None:
        """Record newly imported modules and ``modules``."""
        for name in [name for name in sys.modules if name not in self._seen]:
            self._seen.add(name)
            if name.partition(".")[0] in _TOPS and isinstance(module := sys.modules[name], types.ModuleType):
                self._note_module(module)
        for module in modules:
            self._note_module(module)

    def restore(self) -> bool:
        """Restore changed names; return whether there were any."""
        if self._is_as_before():
            return False
        is_changed = False
        for owner, before in self._before:
            now = vars(owner)
            if len(now) != len(before) or not all(map(is_, now.values(), before.values())):
                is_changed |= _restore(owner, before)
        self._now = []
        return is_changed

    def _is_as_before(self) -> bool:
        """Whether all names have their recorded values; in one pass, since there are tens of thousands."""
        if len(self._now) != len(self._before):
            self._now = [vars(owner) for owner, _ in self._before]
            self._sizes = [len(before) for _, before in self._before]
            self._values = [value for _, before in self._before for value in before.values()]
        found = itertools.chain.from_iterable(map(_VALUES, self._now))
        return list(map(len, self._now)) == self._sizes and all(map(is_, found, self._values))

    def _note_module(self, module: types.ModuleType) -> None:
        kinds = [value for value in vars(module).values() if isinstance(value, type) and _may_change(value)]
        owners: list[Owner] = [module, *kinds]
        for owner in owners:
            if id(owner) not in self._noted:
                self._noted.add(id(owner))
                self._before.append((owner, dict(vars(owner))))


def _may_change(kind: type) -> bool:
    return kind.__flags__ & (_HEAP | _IMMUTABLE) == _HEAP and _is_theirs(kind)


def _is_theirs(value: Any) -> bool:
    """Whether ``value`` is a module, or was created in a library module."""
    if isinstance(value, types.ModuleType):
        return True
    module = getattr(value, "__module__", None) if isinstance(value, (type, types.FunctionType)) else None
    return isinstance(module, str) and module.partition(".")[0] in _TOPS


def _restore(owner: Owner, before: dict[str, Any]) -> bool:
    """Restore the names of ``owner``; add those that stay to ``before``."""
    is_changed = False
    now: Mapping[str, Any] = dict(vars(owner))
    for name in {**before, **now}:
        was, found = before.get(name, _MISSING), now.get(name, _MISSING)
        if was is found:
            continue
        is_private = name.startswith("_") and not callable(found if was is _MISSING else was)
        if is_private or (was is _MISSING and _is_theirs(found)):
            continue
        is_changed = True
        setter = type if isinstance(owner, type) else types.ModuleType  # a metaclass may refuse
        if was is _MISSING:
            setter.__delattr__(owner, name)
        else:
            setter.__setattr__(owner, name, was)
    before.clear()
    before.update(vars(owner))
    return is_changed


_SYS = (
    "argv", "path", "meta_path", "path_hooks", "stdout", "stderr", "stdin", "excepthook", "displayhook",
    "unraisablehook", "breakpointhook",
)  # fmt: skip

_SOON_S = 0.05
_SELDOM = 30

ForFile = Callable[[ModuleSandbox, list[str]], AbstractContextManager[None]]


@contextmanager
def preserved_process_state() -> Iterator[ForFile]:
    """Restore all state at the end. A full check takes longer than a file's run, so many files share one.

    Yields:
        A context for each file: it has the checkout as working folder, and a command line. Afterwards it restores
        state that would disturb the next file or Tradewind's own code.
    """
    soon = [_sys_restorer(), _warnings_restorer(), _hooks_restorer(), _timers_restorer(), _environment_restorer()]
    late: list[Callable[[], object]] = [
        _modules_restorer(),
        partial(decimal.setcontext, decimal.getcontext().copy()),
        _logging_restorer(),
        partial(random.setstate, random.getstate()),
        partial(os.chdir, os.getcwd()),
        partial(locale.setlocale, locale.LC_ALL, locale.setlocale(locale.LC_ALL)),
    ]
    was_collecting = gc.isenabled()
    modules = ModuleState()
    modules.note()

    @contextmanager
    def for_file(sandbox: ModuleSandbox, argv: list[str]) -> Iterator[None]:
        sys.argv, sys.path = list(argv), list(sys.path)
        os.chdir(sandbox.root)
        known = set(sandbox.modules)
        modules.note(sandbox.builtins.modules())
        sandbox.noting = modules.note
        try:
            yield
        finally:
            for restore in soon:
                restore()
            if modules.restore():  # perhaps by an import, which the next file must repeat
                sandbox.forget(set(sandbox.modules) - known)
            (gc.enable if was_collecting else gc.disable)()

    try:
        yield for_file
    finally:
        for restore in late:
            restore()


@contextmanager
def reduced_gc() -> Iterator[None]:
    """Collect garbage less often meanwhile, and as before afterwards, even if a file changes the setting.

    Nearly all of the millions of values survive, and scanning them takes an eighth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], before[2] * _SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _sys_restorer() -> Callable[[], None]:
    before = {name: getattr(sys, name) for name in _SYS}
    contents = {name: list(value) for name, value in before.items() if isinstance(value, list)}
    limit = sys.getrecursionlimit()

    def restore() -> None:
        for name, value in before.items():
            setattr(sys, name, value)
        for name, items in contents.items():
            before[name][:] = items
        sys.setrecursionlimit(limit)

    return restore


def _hooks_restorer() -> Callable[[], None]:
    before, shown, timeout = sys.gettrace(), threading.excepthook, socket.getdefaulttimeout()
    profile, interval = sys.getprofile(), sys.getswitchinterval()
    is_main = threading.current_thread() is threading.main_thread()  # only it may set signal handlers
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()} if is_main else {}

    def restore() -> None:
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

    return restore


def _timers_restorer() -> Callable[[], None]:
    """Restore timers: Airflow stops slow parses by one."""
    kinds = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    before, begun = {kind: signal.getitimer(kind) for kind in kinds}, time.monotonic()

    def restore() -> None:
        passed = time.monotonic() - begun
        for kind, (left, interval) in before.items():
            expected = max(left - passed, _SOON_S) if left else 0.0
            if not left - passed - _SOON_S <= signal.getitimer(kind)[0] <= left + interval:
                signal.setitimer(kind, expected, interval)

    return restore


def _modules_restorer() -> Callable[[], None]:
    before = dict(sys.modules)

    def restore() -> None:
        for name, module in before.items():  # later imports stay: they are real
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
        for name in [name for name in sys.modules if name not in before]:
            if getattr(sys.modules[name], "__spec__", None) is None:  # inserted by the file
                del sys.modules[name]

    return restore


def _environment_restorer() -> Callable[[], None]:
    before = dict(os.environ)

    def restore() -> None:
        if dict(os.environ) != before:  # posix.environ is the dictionary in it
            os.environ.clear()
            os.environ.update(before)

    return restore


def _warnings_restorer() -> Callable[[], None]:
    before, shown = warnings.filters[:], warnings.showwarning

    def restore() -> None:
        if warnings.filters != before:
            warnings.filters[:] = before  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        warnings.showwarning = shown

    return restore


def _logging_restorer() -> Callable[[], None]:
    root = logging.getLogger()
    loggers = [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]
    before: list[tuple[logging.Logger, Any, Any, Any, Any, Any]] = [
        (each, each.level, each.handlers[:], each.filters[:], each.propagate, each.disabled) for each in loggers
    ]
    disabled, factory, kind = root.manager.disable, logging.getLogRecordFactory(), logging.getLoggerClass()
    known = set(root.manager.loggerDict)

    def restore() -> None:
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

    return restore


# Who ended the run: a file's own ``raise KeyboardInterrupt`` is its error, a user's Ctrl-C ends this process.
#
# An exception from a signal handler has the handler's code in its traceback. Python's own Ctrl-C handler is in C, which
# no traceback shows. So while files are loaded, a Python handler calls it.


def _interrupted(number: int, frame: types.FrameType | None) -> None:
    signal.default_int_handler(number, frame)


@contextmanager
def tracked_signals() -> Iterator[None]:
    """Let ``is_by_signal`` recognize a Ctrl-C meanwhile."""
    is_main = threading.current_thread() is threading.main_thread()  # the only one that receives signals
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_by_signal(error: BaseException | None) -> bool:
    """Whether a signal handler raised ``error`` or its cause."""
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                return True
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return False


def _code_of(handler: Any) -> types.CodeType | None:
    if isinstance(handler, types.MethodType):
        handler = handler.__func__
    if not isinstance(handler, types.FunctionType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 - of an object, the code of its class
    return getattr(handler, "__code__", None)
