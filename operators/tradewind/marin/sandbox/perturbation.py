"""Perturbed run: the second evaluation has another clock, process ID, machine and set order.

Clock: both evaluations happen within a second or two, so a date, an hour or often a second in a name would be equal.
The second evaluation's clock is later by some of each.

Machine: the DAG processor parses the DAG file, each task's worker parses it again, and Marin ran it on another host.

Sets: the order of a set of texts differs between processes, but not between two evaluations in one process.
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
from typing import Any, Final

from tradewind.marin.refusals import SourceLine, notes, running_place

CLOCK_OFFSET: Final = datetime.timedelta(days=400, hours=1, minutes=2, seconds=3, milliseconds=4)
_LATER_S: Final = CLOCK_OFFSET.total_seconds()


class _LikeDateTime(type):
    """Metaclass of a class whose instances are all of the real class."""

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
    """Return the replacements in real modules that change the clock and the process ID."""
    shifted: dict[str, Any] = {name: _later(getattr(time, name)) for name in ("localtime", "gmtime", "ctime")}
    shifted["strftime"] = lambda form, *when: time.strftime(form, *(when or (time.localtime(time.time() + _LATER_S),)))
    shifted["asctime"] = lambda *when: time.asctime(*(when or (time.localtime(time.time() + _LATER_S),)))
    shifted["time"] = lambda: time.time() + _LATER_S
    shifted["time_ns"] = lambda: time.time_ns() + int(_LATER_S * 1e9)
    return {
        time: shifted,
        datetime: {"datetime": _OtherDateTime, "date": _OtherDate},
        os: {"getpid": lambda: os.getpid() + 1, "getppid": lambda: os.getppid() + 1},
    }


def _later(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *when: function(*(when if when and when[0] is not None else (time.time() + _LATER_S,)))


def perturbed_machine() -> dict[types.ModuleType, dict[str, Any]]:
    """Return the replacements in real modules that change the machine."""
    return {
        os: {"cpu_count": lambda: (os.cpu_count() or 0) + 1, "listdir": lambda *path: os.listdir(*path)[::-1]},
        socket: {name: _other(getattr(socket, name)) for name in ("gethostname", "getfqdn")},
        platform: {"node": _other(platform.node)},
        getpass: {"getuser": _other(getpass.getuser)},
    }


def _other(function: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: f"{function(*args)}-other"


_COMBINED = ("or", "and", "sub", "xor", "ror", "rand", "rsub", "rxor")
_MADE = ("union", "intersection", "difference", "symmetric_difference", "copy")

walked: list[SourceLine] = []
"""Lines of the evaluated file that iterated over such a set."""


class _Reversed:
    """A set that iterates from its end, unless its order is defined."""

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
    """Return ``value``; a set with its order reversed."""
    kind = _OTHERS.get(type(value))
    return value if kind is None else kind(value)
