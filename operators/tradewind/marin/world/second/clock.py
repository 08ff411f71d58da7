"""The clock and the number of the process as the second of two evaluations finds them.

Both take place within a second or two, so that a date, an hour or often a second in a name would be the same in both:
for the second, it is later by some of each.
"""

from __future__ import annotations

import datetime
import os
import time
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Final

LATER: Final = datetime.timedelta(days=400, hours=1, minutes=2, seconds=3, milliseconds=4)
_LATER_S: Final = LATER.total_seconds()
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
        return datetime.date.today() + LATER


class _OtherDateTime(_OtherDate):
    _real = datetime.datetime

    @staticmethod
    def now(tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return datetime.datetime.now(tz) + LATER

    @staticmethod
    def today() -> datetime.datetime:
        return datetime.datetime.now() + LATER

    @staticmethod
    def utcnow() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + LATER


def other_clock() -> dict[types.ModuleType, dict[str, Any]]:
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
