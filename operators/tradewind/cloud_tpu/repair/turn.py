"""Whose turn it is to delete: of the repairs that share a folder of records, one at a time.

The Cloud TPU API deletes by name, whatever has that name by then. So a repair takes the turn, looks, deletes, and gives
the turn back; who comes next sees what was done. A holder sends nothing more once ``HOLD_S`` have gone by on its own
clock, on which time goes on while a process is frozen or its machine suspended. Others take over after ``STALE_S`` by
the store's clock: what was sent just before has been answered, or given up, by then.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Final, Protocol

from tradewind.cloud_tpu.api import CALL_TIMEOUT_S

HOLD_S: Final = 60.0
STALE_S: Final = HOLD_S + CALL_TIMEOUT_S


class Seen(Protocol):
    """An object in a store: its text, what a later write must find there, and its age by the store's clock."""

    @property
    def text(self) -> str: ...
    @property
    def tag(self) -> str: ...
    @property
    def age_s(self) -> float: ...


Read = Callable[[str], Seen | None]
Write = Callable[[str, str, str | None], Seen | None]
"""Path, text, and the tag of what is to be replaced (None: create it); None if something else is there."""


def boot_time() -> float:
    """Seconds since the machine was started, those in which it was suspended included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RepairTurn:
    """The turn of one folder, as one repair sees it.

    Args:
        path: A file that is written by compare-and-swap only.
        read: Reads it.
        write: Swaps it.
        hold_s: For how long it is held at most.
        stale_s: After how long without a change others take it over.
        clock: Seconds that never stand still.
    """

    def __init__(
        self,
        path: str,
        read: Read,
        write: Write,
        *,
        hold_s: float = HOLD_S,
        stale_s: float = STALE_S,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._path = path
        self._read = read
        self._write = write
        self._hold_s = hold_s
        self._stale_s = stale_s
        self._clock = clock
        self._held: Seen | None = None
        self._until = 0.0

    @property
    def is_ours(self) -> bool:
        """Whether something may be deleted still; nobody is asked."""
        return self._held is not None and self._clock() < self._until

    def take(self) -> bool:
        """Take the turn, or have it for its whole time again; False: another repair has it."""
        began = self._clock()
        there = self._read(self._path)
        if there is not None:
            is_own = self._held is not None and there.tag == self._held.tag
            if not (is_own or there.age_s >= self._stale_s or _holder(there.text) == ""):
                self._held = None
                return False
        self._held = self._write(self._path, _text(uuid.uuid4().hex), there.tag if there else None)
        self._until = began + self._hold_s
        return self.is_ours

    def give_back(self) -> None:
        """Let the next one take it. If somebody has taken it over, it stays theirs."""
        held, self._held = self._held, None
        if held is not None:
            self._write(self._path, _text("", of=held.text), held.tag)


def _holder(text: str) -> str | None:
    """Who holds it; None if that cannot be read: it is somebody's then, until it is stale."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    holder = found.get("holder") if isinstance(found, dict) else None
    return holder if isinstance(holder, str) else None


def _text(holder: str, of: str = "") -> str:
    """Each text is another one, so that whoever reads it back knows whether it is its own."""
    return json.dumps({"holder": holder, "before": json.loads(of)["holder"] if of else ""})
