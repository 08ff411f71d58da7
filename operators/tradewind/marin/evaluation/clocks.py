"""Which line reads what differs from time to time: the clock, chance, a process' number, an address, a machine."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tradewind.marin.refusals import SourceLine, place_below

_READS = {
    "now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime", "strftime", "ctime", "asctime",
    "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "urandom", "getrandbits", "random", "getpid", "id",
    "gettempdir", "mkdtemp", "token_hex", "uuid1", "uuid4", "gethostname", "uname", "cpu_count", "listdir",
}  # fmt: skip
_TAKES_A_TIME = {"strftime", "ctime", "asctime", "localtime", "gmtime"}
"""They read the clock only when they are given no time; where another line did, that one is to blame."""


@contextmanager
def clock_reads(root: Path) -> Iterator[list[SourceLine]]:
    """The lines below ``root`` that read such a thing meanwhile in this thread; first those that surely do."""
    sure: list[SourceLine] = []
    maybe: list[SourceLine] = []
    found: list[SourceLine] = []

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or (name := getattr(argument, "__name__", "")) not in _READS:
            return
        reader: types.FrameType | None = frame
        while reader is not None and not (name == "id" and reader is not frame):  # the standard library often asks it
            if (place := place_below(root, reader.f_code.co_filename, reader.f_lineno)) is not None:
                (maybe if name in _TAKES_A_TIME else sure).append(place)
                return
            reader = reader.f_back

    before, was_collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # what is called when garbage is collected may read a clock, at whatever line that happens
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)
        (gc.enable if was_collecting else gc.disable)()
        found += [*sure, *maybe]
