"""Leases of requests, and the number of engines that a pool wants for them.

Each request is at one engine at a time, and goes to another if that one is lost. The balancer runs on the event loop of
the pool's head. A lease ends with the answer, with a lost connection, or when the head gives the engine up (``lose``),
which cancels the requests that are there.

A request may itself be what ends its engine. So one that has lost two engines shares the next with few others, and one
that has lost three is alone there: only the cause loses further engines.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tradewind.serving.config import PoolLimits


class NoEngineError(Exception):
    """No engine is ready."""


class EngineLostError(Exception):
    """The engine was lost before it had answered."""


@dataclass(eq=False)
class Engine:
    """One engine, as the head sees it.

    Attributes:
        name: Of its worker.
        url, token: Of its relay.
        is_draining: It gets no new requests.
        down_since: When a connection to it failed (monotonic); None while it is fine.
        rooms: For each of its requests, how many the engine may have at a time.
    """

    name: str
    url: str
    token: str
    is_draining: bool = False
    down_since: float | None = None
    rooms: list[int] = field(default_factory=list)
    served: int = 0

    @property
    def in_flight(self) -> int:
        return len(self.rooms)

    @property
    def is_open(self) -> bool:
        return not self.is_draining and self.down_since is None


class Balancer:
    """Gives each request the engine with the fewest requests, or a place in the queue.

    Args:
        max_concurrent: How many requests an engine gets at a time.
    """

    def __init__(self, max_concurrent: int) -> None:
        self._max = max_concurrent
        self.engines: dict[str, Engine] = {}
        self._leases: dict[asyncio.Task[Any], tuple[Engine, int]] = {}
        self._lost: set[asyncio.Task[Any]] = set()
        self._queue: deque[tuple[asyncio.Task[Any], asyncio.Future[None], int]] = deque()
        self.active_at = time.monotonic()
        """When a request last began or ended, or a user said that it is there."""

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    @property
    def has_open(self) -> bool:
        """Whether an engine takes requests, if perhaps not at once."""
        return any(engine.is_open for engine in self.engines.values())

    def touch(self) -> None:
        """Note a sign of use."""
        self.active_at = time.monotonic()

    def add(self, engine: Engine) -> None:
        """Add a ready engine."""
        self.engines[engine.name] = engine
        self._serve_queue()

    def note_down(self, engine: Engine) -> None:
        """Give the engine no requests until it says that it is fine."""
        engine.down_since = time.monotonic()

    def note_up(self, name: str, asked_at: float) -> None:
        """Count an engine as fine again: it said so when it was asked at ``asked_at``."""
        engine = self.engines.get(name)
        if engine is not None and engine.down_since is not None and asked_at > engine.down_since:
            engine.down_since = None
            self._serve_queue()

    def drain(self, name: str) -> None:
        """Give an engine no further requests."""
        if name in self.engines:
            self.engines[name].is_draining = True

    def lose(self, name: str) -> None:
        """Give an engine up, and send its requests to others."""
        engine = self.engines.pop(name, None)
        for task in [task for task, (holder, _) in self._leases.items() if holder is engine]:
            self._lost.add(task)
            task.cancel()

    @asynccontextmanager
    async def lease(self, *, losses: int = 0, avoided: Engine | None = None) -> AsyncIterator[Engine]:
        """Hold a place at an engine for the block; at the avoided one only if no other is free.

        Args:
            losses: How many engines were lost while they worked on the request.
            avoided: An engine that answered it with an error.

        Raises:
            NoEngineError: No engine is ready, and the request is new.
            EngineLostError: The engine was given up during the block.
        """
        task = asyncio.current_task()
        assert task is not None
        self.touch()
        try:
            await self._acquire(task, losses, avoided)
            yield self._leases[task][0]
        except asyncio.CancelledError:
            if task in self._lost and task.uncancel() == 0:
                raise EngineLostError from None
            raise
        finally:
            self._lost.discard(task)
            if (held := self._leases.pop(task, None)) is not None:
                engine, room = held
                engine.rooms.remove(room)
            self.touch()
            self._serve_queue()

    async def _acquire(self, task: asyncio.Task[Any], losses: int, avoided: Engine | None) -> None:
        is_resent = losses > 0 or avoided is not None
        if not is_resent and not self.has_open:
            raise NoEngineError
        room = self._room(losses)
        if (is_resent or not self._queue) and (engine := self._free(room, avoided)) is not None:
            self._assign(task, engine, room)
            return
        place = task, asyncio.get_running_loop().create_future(), room
        if is_resent:
            self._queue.appendleft(place)
        else:
            self._queue.append(place)
        try:
            await place[1]
        finally:
            if place in self._queue:
                self._queue.remove(place)
                self._serve_queue()

    def _room(self, losses: int) -> int:
        """Return how many requests an engine may have together with one that has lost so many."""
        rooms = (self._max, self._max, math.isqrt(self._max))
        return rooms[losses] if losses < len(rooms) else 1

    def _free(self, room: int, avoided: Engine | None = None) -> Engine | None:
        engines = [each for each in self.engines.values() if each.is_open and each.in_flight < min([room, *each.rooms])]
        return min(engines, key=lambda engine: (engine is avoided, engine.in_flight), default=None)

    def _assign(self, task: asyncio.Task[Any], engine: Engine, room: int) -> None:
        self._leases[task] = engine, room
        engine.rooms.append(room)

    def _serve_queue(self) -> None:
        """Fill the engines in the order of the queue: what needs an engine of its own waits for one before the rest."""
        while self._queue and (engine := self._free(self._queue[0][2])) is not None:
            task, place, room = self._queue.popleft()
            if not place.done():
                self._assign(task, engine, room)
                place.set_result(None)


@dataclass
class Scaler:
    """The number of engines that a pool wants, within its limits."""

    minimum: int
    maximum: int
    max_concurrent: int
    limits: PoolLimits
    wanted: int = 0
    _busy_since: float | None = None
    _spare_since: float | None = None

    def __post_init__(self) -> None:
        self.wanted = max(self.minimum, min(self.wanted, self.maximum))

    def decide(self, now: float, *, queued: int, in_flight: int, ready: int) -> int:
        """Return how many engines the pool wants; it is called all the time.

        It wants no further one while one that it wants is not ``ready``.
        """
        needed = math.ceil((queued + in_flight) / self.max_concurrent)
        is_short = queued > 0 and ready >= self.wanted and self.wanted < self.maximum
        is_spare = queued == 0 and needed < self.wanted and self.wanted > self.minimum
        self._busy_since = _since(self._busy_since, now) if is_short else None
        self._spare_since = _since(self._spare_since, now) if is_spare else None
        if self._busy_since is not None and now - self._busy_since >= self.limits.queue_s:
            self.wanted = min(self.maximum, max(needed, self.wanted + 1))
            self._busy_since = None
        elif self._spare_since is not None and now - self._spare_since >= self.limits.spare_s:
            self.wanted -= 1
            self._spare_since = now
        return self.wanted


def _since(before: float | None, now: float) -> float:
    return now if before is None else before
