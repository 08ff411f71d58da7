"""Holds one slice for a person who develops on it, for as long as the command that asked for it gives signs of life.

Run as a Ray job on the head: ``python -m tradewind.runtime.dev_slice SESSION TYPE``. A sign of life is a change of the
file ``heartbeat_path(SESSION)``, which that command makes over ``ssh``; that the file is gone again means that the
person is done. So nothing is reserved before the first sign, and a killed laptop's slice is free after ``--silent``.
When it ends, however that comes, what the person has started on the hosts is ended first, and then Ray gives the slice
to others.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.host_files import DevSlice, heartbeat_path
from tradewind.runtime.pods.capacity.reservation import NoFreeSliceError, Placements, Reservation, SliceAllocator
from tradewind.runtime.pods.capacity.slices import HostGroup, complete_slices, free_slices
from tradewind.runtime.pods.nodes import live_nodes
from tradewind.runtime.pods.on_host.actors import dev_host

REFUSED: Final = 3
LOST: Final = 4
_FIRST_SIGN_S: Final = 180.0
_LAND_S: Final = 60.0
"""How long a slice that looks free may take to be ours."""
_LOOK_S: Final = 1.0
_HOSTS_EVERY_S: Final = 10.0
_ANSWER_S: Final = 120.0
_CLEAR_S: Final = 20.0


class Sign(Enum):
    """What the file says of whoever wants the slice."""

    NONE_YET = "it has given no sign of life yet"
    ALIVE = "it lives"
    SILENT = "it has given no sign of life for too long"
    DONE = "it is done"


class SessionHeartbeat:
    """Those of one session.

    Args:
        read: When the file was changed, by its own clock; None if it is not there.
        silent_s: For how long it may not change.
        first_s: For how long it may not be there at first.
        clock: Seconds that only grow; the file's are only compared with each other.
    """

    def __init__(
        self,
        read: Callable[[], int | None],
        silent_s: float,
        *,
        first_s: float = _FIRST_SIGN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._silent_s = silent_s
        self._first_s = first_s
        self._clock = clock
        self._last: int | None = None
        self._since = clock()

    def look(self) -> Sign:
        """What it says now."""
        found, now = self._read(), self._clock()
        if found is None and self._last is not None:
            return Sign.DONE
        if found != self._last:
            self._last, self._since = found, now
        if now - self._since > (self._first_s if self._last is None else self._silent_s):
            return Sign.SILENT
        return Sign.NONE_YET if self._last is None else Sign.ALIVE

    @property
    def are_given(self) -> bool:
        """Whether somebody wants the slice, or may yet."""
        return self.look() in (Sign.NONE_YET, Sign.ALIVE)


class SliceHolder:
    """Holds one slice of a type, for one session."""

    def __init__(self, session: str, group: HostGroup, signs: SessionHeartbeat, tell: Callable[[str], None]) -> None:
        self._session = session
        self._group = group
        self._signs = signs
        self._tell = tell

    def hold(self, wait_s: float) -> int:
        """Reserve, wait until nobody wants it any more, and give it back; the exit code."""
        if wait_s <= 0 and (why := self._why_none()):
            return self._refuse(why)
        placements = Placements()
        try:
            reservation = self._reserved(placements, max(wait_s, _LAND_S))
        except NoFreeSliceError:
            return self._refuse(self._why_none() or f"{self._group.name} slices were free, and taken by others.")
        if reservation is None:
            self._tell(f"Nobody waits for the slice any more: {self._signs.look().value}.")
            return 0
        hosts = [dev_host(self._session, seat) for seat in reservation.seats]
        try:
            return self._held(reservation, hosts)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever stops the job wants just this
            self._clear(hosts)
            reservation.release()
            placements.close()
            self._tell(f"Slice {', '.join(reservation.slice_names)} is free again.")

    def _held(self, reservation: Reservation, hosts: Sequence[Any]) -> int:
        import ray

        [name] = reservation.slice_names
        facts = ray.get([host.prepare.remote() for host in hosts], timeout=_ANSWER_S)
        self._tell(DevSlice(name, tuple(facts)).line())
        look_at = time.monotonic() + _HOSTS_EVERY_S
        while self._signs.are_given:
            time.sleep(_LOOK_S)
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _HOSTS_EVERY_S
                try:
                    ray.get([host.is_up.remote() for host in hosts], timeout=_ANSWER_S)
                except (ray.exceptions.RayError, TimeoutError) as error:
                    self._tell(f"Slice {name} is lost: a host does not answer any more ({type(error).__name__}).")
                    return LOST
        self._tell(f"The slice is given back: {self._signs.look().value}.")
        return 0

    def _reserved(self, placements: Placements, timeout_s: float) -> Reservation | None:
        """None if nobody waits for it any more. Raises ``NoFreeSliceError``."""
        reserving = SliceAllocator(
            self._group, lambda free: 1 if free else None, 1, 1, placements=placements, say=self._tell
        )
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(_LOOK_S):
                if not self._signs.are_given:
                    reserving.stop()
                    return

        watcher = threading.Thread(target=watch, daemon=True, name="signs-of-life")
        watcher.start()
        try:
            return reserving.run(timeout_s)
        finally:
            is_over.set()
            watcher.join()

    def _why_none(self) -> str:
        """Why no slice can be had now; empty if one is free."""
        if free_slices(self._group):
            return ""
        there = len(complete_slices(live_nodes(), self._group))
        name = self._group.name
        return f"No {name} slice is free: {f'all {there} are in use' if there else 'none is there now'}."

    def _refuse(self, why: str) -> int:
        self._tell(DevSlice(refused=why).line())
        return REFUSED

    def _clear(self, hosts: Sequence[Any]) -> None:
        import ray

        ready, _ = ray.wait([host.clear.remote() for host in hosts], num_returns=len(hosts), timeout=_CLEAR_S)
        for one in ready:
            with suppress(ray.exceptions.RayError):  # a host that is gone has nothing left to clear
                if ended := ray.get(one):
                    self._tell(f"Ended {ended} {'process' if ended == 1 else 'processes'} of a host.")


def main() -> None:
    """Hold the slice that the command line names; ends the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("session")
    parser.add_argument("slice_type")
    parser.add_argument("--silent", type=float, required=True)
    parser.add_argument("--wait", type=float, default=0.0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    group, file = HostGroup.of_slice(arguments.slice_type), Path.home() / heartbeat_path(arguments.session)
    signs = SessionHeartbeat(lambda: _changed_ns(file), arguments.silent)
    with _removed_at_end(file):
        while (sign := signs.look()) is Sign.NONE_YET:
            time.sleep(_LOOK_S)
        if sign is not Sign.ALIVE:
            _tell(f"Nothing was reserved: of whoever asked for the slice, {sign.value}.")
            sys.exit(0)
        import ray

        ray.init(log_to_driver=False)
        sys.exit(SliceHolder(arguments.session, group, signs, _tell).hold(arguments.wait))


@contextmanager
def _removed_at_end(file: Path) -> Iterator[None]:
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _changed_ns(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _tell(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    main()
