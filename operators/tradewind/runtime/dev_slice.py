"""Hold one slice for a user's development session, for as long as the session's command sends heartbeats.

The Ray job on the head is ``python -m tradewind.runtime.dev_slice SESSION TYPE``. A heartbeat is a change of the file
``heartbeat_path(SESSION)``, which the command makes over ``ssh``. It removes the file when the user is done. So nothing
is reserved before the first heartbeat, and a killed laptop's slice is free after ``--silent``. In any case the job
first kills the processes that the user started on the hosts, and then releases the slice.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.host_files import DevSlice, heartbeat_path
from tradewind.runtime.pods.capacity.reservation import NoFreeSliceError, Placements, Reservation, SliceAllocator
from tradewind.runtime.pods.capacity.slices import HostGroup, complete_slices, free_slices
from tradewind.runtime.pods.nodes import live_nodes
from tradewind.runtime.pods.on_host.actors import dev_host

REFUSED: Final = 3
LOST: Final = 4
_FIRST_HEARTBEAT_S: Final = 180.0
_LAND_S: Final = 60.0
"""How long the reservation of a slice that looks free may take."""
_POLL_S: Final = 1.0
_HOSTS_EVERY_S: Final = 10.0
_ANSWER_S: Final = 120.0
_CLEAR_S: Final = 20.0


class SessionState(Enum):
    """State of the session's command, by its heartbeats."""

    NONE_YET = "it has sent no heartbeat yet"
    ALIVE = "it is alive"
    SILENT = "it has sent no heartbeat for too long"
    DONE = "it has ended"


class SessionHeartbeat:
    """Heartbeats of one session.

    Args:
        read: Returns when the file was changed, by its own clock; None if it does not exist.
        silent_s: How long it may stay unchanged.
        first_s: How long it may be missing at first.
        clock: A monotonic clock in seconds. Times of the file are only compared with each other.
    """

    def __init__(
        self,
        read: Callable[[], int | None],
        silent_s: float,
        *,
        first_s: float = _FIRST_HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._silent_s = silent_s
        self._first_s = first_s
        self._clock = clock
        self._last: int | None = None
        self._since = clock()

    def poll(self) -> SessionState:
        """Read the file and return the state."""
        changed, now = self._read(), self._clock()
        if changed is None and self._last is not None:
            return SessionState.DONE
        if changed != self._last:
            self._last, self._since = changed, now
        if now - self._since > (self._first_s if self._last is None else self._silent_s):
            return SessionState.SILENT
        return SessionState.NONE_YET if self._last is None else SessionState.ALIVE

    @property
    def is_wanted(self) -> bool:
        """Whether the session wants the slice, or may yet."""
        return self.poll() in (SessionState.NONE_YET, SessionState.ALIVE)


class SliceHolder:
    """Holds one slice of a type, for one session."""

    def __init__(self, session: str, group: HostGroup, heartbeat: SessionHeartbeat, say: Callable[[str], None]) -> None:
        self._session = session
        self._group = group
        self._heartbeat = heartbeat
        self._say = say

    def hold(self, wait_s: float) -> int:
        """Reserve the slice, hold it until the session ends, and release it; return the exit code."""
        if wait_s <= 0 and (why := self._why_none()):
            return self._refuse(why)
        placements = Placements()
        try:
            reservation = self._reserve(placements, max(wait_s, _LAND_S))
        except NoFreeSliceError:
            return self._refuse(self._why_none() or f"{self._group.name} slices were free, and taken by others.")
        if reservation is None:
            self._say(f"The session no longer waits for the slice: {self._heartbeat.poll().value}.")
            return 0
        hosts = [dev_host(self._session, host) for host in reservation.hosts]
        try:
            return self._wait_for_end(reservation, hosts)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a stop of the job requests the same
            self._clear(hosts)
            reservation.release()
            placements.close()
            self._say(f"Slice {', '.join(reservation.slice_names)} is free again.")

    def _wait_for_end(self, reservation: Reservation, hosts: Sequence[Any]) -> int:
        import ray

        [name] = reservation.slice_names
        infos = ray.get([host.prepare.remote() for host in hosts], timeout=_ANSWER_S)
        self._say(DevSlice(name, tuple(infos)).line())
        check_at = time.monotonic() + _HOSTS_EVERY_S
        while self._heartbeat.is_wanted:
            time.sleep(_POLL_S)
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + _HOSTS_EVERY_S
                try:
                    ray.get([host.is_up.remote() for host in hosts], timeout=_ANSWER_S)
                except (ray.exceptions.RayError, TimeoutError) as error:
                    self._say(f"Slice {name} is lost: a host does not answer any more ({type(error).__name__}).")
                    return LOST
        self._say(f"The slice is given back: {self._heartbeat.poll().value}.")
        return 0

    def _reserve(self, placements: Placements, timeout_s: float) -> Reservation | None:
        """Return None if the session no longer waits. Raises ``NoFreeSliceError``."""
        allocator = SliceAllocator(
            self._group, lambda free: 1 if free else None, 1, 1, placements=placements, say=self._say
        )
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(_POLL_S):
                if not self._heartbeat.is_wanted:
                    allocator.stop()
                    return

        watcher = threading.Thread(target=watch, daemon=True, name="session-heartbeat")
        watcher.start()
        try:
            return allocator.run(timeout_s)
        finally:
            is_over.set()
            watcher.join()

    def _why_none(self) -> str:
        """Return why no slice is free now; empty if one is."""
        if free_slices(self._group):
            return ""
        count = len(complete_slices(live_nodes(), self._group))
        name = self._group.name
        return f"No {name} slice is free: {f'all {count} are in use' if count else 'none is there now'}."

    def _refuse(self, why: str) -> int:
        self._say(DevSlice(refused=why).line())
        return REFUSED

    def _clear(self, hosts: Sequence[Any]) -> None:
        import ray

        ready, _ = ray.wait([host.clear.remote() for host in hosts], num_returns=len(hosts), timeout=_CLEAR_S)
        for reference in ready:
            with suppress(ray.exceptions.RayError):  # a host that is gone has nothing left to clear
                if ended := ray.get(reference):
                    self._say(f"Ended {ended} {'process' if ended == 1 else 'processes'} of a host.")


def main() -> None:
    """Hold the slice that the command line names, then exit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("session")
    parser.add_argument("slice_type")
    parser.add_argument("--silent", type=float, required=True)
    parser.add_argument("--wait", type=float, default=0.0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    group, file = HostGroup.of_slice(arguments.slice_type), Path.home() / heartbeat_path(arguments.session)
    heartbeat, say = SessionHeartbeat(lambda: _changed_ns(file), arguments.silent), partial(print, flush=True)
    try:
        while (state := heartbeat.poll()) is SessionState.NONE_YET:
            time.sleep(_POLL_S)
        if state is not SessionState.ALIVE:
            say(f"Nothing was reserved for the session: {state.value}.")
            sys.exit(0)
        import ray

        ray.init(log_to_driver=False)
        sys.exit(SliceHolder(arguments.session, group, heartbeat, say).hold(arguments.wait))
    finally:
        file.unlink(missing_ok=True)


def _changed_ns(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    main()
