"""Whose an end is: a file's own ``raise KeyboardInterrupt`` is its error, a person's Ctrl-C ends this process.

What a signal's handler raises comes through that handler's code. Python's own for Ctrl-C is written in C, where no
traceback shows it, so while files are loaded one of Python code calls it.
"""

from __future__ import annotations

import signal
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _interrupted(number: int, frame: types.FrameType | None) -> None:
    signal.default_int_handler(number, frame)


@contextmanager
def told_signals() -> Iterator[None]:
    """Meanwhile, ``is_by_signal`` knows a Ctrl-C."""
    is_main = threading.current_thread() is threading.main_thread()  # the only one that hears signals
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_by_signal(error: BaseException | None) -> bool:
    """Whether a signal's handler raised ``error``, or what it was raised from."""
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
