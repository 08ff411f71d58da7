"""The clock and the number of the process as the second of two evaluations finds them.

Both take place within a second or two, so that a date, an hour or often a second in a name would be the same in both:
for the second, it is later by some of each.
"""

from __future__ import annotations

import datetime
import getpass
import numbers
import os
import platform
import socket
import time
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from tradewind.marin.refusals import SourceLine, notes, running_place

CLOCK_OFFSET: Final = datetime.timedelta(days=400, hours=1, minutes=2, seconds=3, milliseconds=4)
_LATER_S: Final = CLOCK_OFFSET.total_seconds()
_TAKE_A_TIME: Final = ("localtime", "gmtime", "ctime")


class _LikeDateTime(type):
    """Of a class whose objects are all of the real one."""

    _real: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls._real)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(getattr(other, "_real", other), cls._real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._real, name)


class _OtherDate(metaclass=_LikeDateTime):
    _real = datetime.date

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._real(*args, **kwargs)

    @staticmethod
    def today() -> datetime.date:
        return datetime.date.today() + CLOCK_OFFSET


class _OtherDateTime(_OtherDate):
    _real = datetime.datetime

    @staticmethod
    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return datetime.datetime.now(tz) + CLOCK_OFFSET

    @staticmethod
    def today() -> datetime.datetime:
        return datetime.datetime.now() + CLOCK_OFFSET

    @staticmethod
    def utcnow() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + CLOCK_OFFSET


def perturbed_clock() -> dict[types.ModuleType, dict[str, Any]]:
    """What of the real modules is another thing for the second evaluation."""
    shifted: dict[str, Any] = {name: _later(getattr(time, name)) for name in _TAKE_A_TIME}
    shifted["strftime"] = lambda form, *when: time.strftime(form, *(when or (time.localtime(time.time() + _LATER_S),)))
    shifted["asctime"] = lambda *when: time.asctime(*(when or (time.localtime(time.time() + _LATER_S),)))
    shifted["time"] = lambda: time.time() + _LATER_S
    shifted["time_ns"] = lambda: time.time_ns() + int(_LATER_S * 1e9)
    return {
        time: shifted,
        datetime: {"datetime": _OtherDateTime, "date": _OtherDate},
        os: {name: partial(_one_more, getattr(os, name)) for name in ("getpid", "getppid")},
    }


def _later(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *when: function(*(when if when and when[0] is not None else (time.time() + _LATER_S,)))


def _one_more(function: Callable[[], int]) -> int:
    return function() + 1


# The machine that a file is evaluated on, for the second of two evaluations another one.
#
# The DAG file is parsed by the DAG processor and again by each task's worker, and Marin ran the file somewhere else.

_SUFFIX: Final = "-other"


def perturbed_machine() -> dict[types.ModuleType, dict[str, Any]]:
    """What of the real modules is another thing for the second evaluation."""
    return {
        os: {"cpu_count": _one_more_cpu(os.cpu_count), "listdir": lambda *path: os.listdir(*path)[::-1]},
        socket: {name: _other(getattr(socket, name)) for name in ("gethostname", "getfqdn")},
        platform: {"node": _other(platform.node)},
        getpass: {"getuser": _other(getpass.getuser)},
    }


def _other(function: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: function(*args) + _SUFFIX


def _one_more_cpu(function: Callable[[], int | None]) -> Callable[[], int]:
    return lambda: (function() or 0) + 1


# Sets that the second of two evaluations walks through in another order.
#
# In which order a set of texts is walked through differs from process to process, and not between two evaluations in
# one.

_COMBINED = ("or", "and", "sub", "xor", "ror", "rand", "rsub", "rxor")
_MADE = ("union", "intersection", "difference", "symmetric_difference", "copy")

walked: list[SourceLine] = []
"""The lines of the file that is evaluated which have walked through such a set."""


class _Reversed:
    """A set, walked through from its end where its order is nobody's."""

    def __iter__(self) -> Iterator[Any]:
        values: list[Any] = list(super().__iter__())  # type: ignore[misc]
        if len(values) < 2 or all(isinstance(value, numbers.Number) for value in values):
            return iter(values)
        if notes.root is not None and (place := running_place(notes.root)) is not None:
            walked.append(place)
        return iter(values[::-1])

    def __repr__(self) -> str:
        return repr(set(self)) if not self else f"{{{', '.join(map(repr, self))}}}"


class ReversedSet(_Reversed, set[Any]):
    """``set``."""

    def pop(self) -> Any:
        value = next(iter(self))
        self.remove(value)
        return value


class ReversedFrozenSet(_Reversed, frozenset[Any]):
    """``frozenset``."""

    def __repr__(self) -> str:
        return f"frozenset({super().__repr__() if self else ''})"


def _combining(kind: type[Any], name: str) -> Callable[..., Any]:
    def combined(self: Any, *others: Any) -> Any:
        made = getattr(super(kind, self), name)(*others)
        return made if made is NotImplemented else kind(made)

    return combined


for _kind in (ReversedSet, ReversedFrozenSet):
    for _name in (*(f"__{name}__" for name in _COMBINED), *_MADE):
        setattr(_kind, _name, _combining(_kind, _name))
_OTHERS: Mapping[type, type] = {set: ReversedSet, frozenset: ReversedFrozenSet}


def reversed_order(value: Any) -> Any:
    """``value``, or if it is a set, the same one in another order."""
    kind = _OTHERS.get(type(value))
    return value if kind is None else kind(value)
