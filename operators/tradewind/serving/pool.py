"""Start and use pools: engines that serve one model behind one OpenAI-compatible address on a Ray cluster.

A pool's head is a named detached actor, so Ray itself starts it once however many users ask (``head``). Its engines run
in named detached actors, too (``worker``). All end at the pool's timeout, or when it is idle, whoever started them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tradewind.serving.config import ServingConfig

NAMESPACE: Final = "tradewind.serving"
READY_TIMEOUT_S: Final = 3600.0


class PoolError(RuntimeError):
    """A pool cannot be started or has ended; the message says why."""


@dataclass(frozen=True)
class EngineStatus:
    """One engine of a pool.

    Attributes:
        name: Name of its worker actor.
        state: ``waiting`` (for resources), ``fetching`` (weights), ``starting``, ``ready``, ``draining`` or ``failed``.
        node: Address of its node; empty while it waits.
        in_flight: Requests that it works on.
        served: Requests that it has answered.
        detail: Why it is in this state, for a user.
    """

    name: str
    state: str
    node: str = ""
    in_flight: int = 0
    served: int = 0
    detail: str = ""


@dataclass(frozen=True)
class PoolStatus:
    """State of a pool.

    Attributes:
        name: Its name.
        address: Base URL of its API.
        model: What it serves: name in the API.
        state: ``starting`` (no engine is ready), ``ready``, ``failed`` (engines do not start) or ``ending``.
        engines: Its engines.
        queued: Requests that wait for an engine.
        served: Requests that were answered.
        resent: Requests that were sent again after their engine was lost.
        prompt_tokens, completion_tokens: Sums over the answers that count them.
        engine_losses: Engines that ended while they served.
        start_failures: Engines that did not start, one after another.
        last_error: The last reason of these, with the end of the engine's log, without secrets.
        ends_at: When its timeout is, in epoch seconds.
    """

    name: str
    address: str
    model: str
    state: str
    engines: tuple[EngineStatus, ...] = ()
    queued: int = 0
    served: int = 0
    resent: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    engine_losses: int = 0
    start_failures: int = 0
    last_error: str = ""
    ends_at: float = 0.0


@dataclass(frozen=True)
class ServedPool:
    """A pool that this process has joined.

    Attributes:
        address: Base URL of its API, ``http://HOST:PORT/v1``.
        token: The bearer token of this process; the pool knows only its SHA-256.
        name: Name of the pool.
    """

    address: str
    token: str = field(repr=False)
    name: str = ""

    def wait_ready(
        self, timeout_s: float = READY_TIMEOUT_S, say: Callable[[PoolStatus], None] | None = None
    ) -> PoolStatus:
        """Wait until an engine is ready; ``say`` gets each new state.

        Raises:
            PoolError: Engines do not start, with the end of their log; or the time is over.
        """
        raise NotImplementedError

    def status(self) -> PoolStatus:
        """Return the pool's state."""
        raise NotImplementedError

    def rejoin(self) -> ServedPool:
        """Return the pool with its present address, in which the token counts again.

        Raises:
            PoolError: The pool has ended.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End the pool and all its engines, and wait for that."""
        raise NotImplementedError


def ensure_pool(config: ServingConfig, *, token: str | None = None) -> ServedPool:
    """Return the pool that serves this config; start it if the cluster has none. Return before it is ready.

    It runs inside a Ray job or driver; a process that is not connected to Ray connects to the cluster of its node.

    Args:
        token: A bearer token to use; a random one if None.

    Raises:
        PoolError: The cluster could never run it, or the model or engine is wrong.
    """
    raise NotImplementedError


def find_pools() -> list[PoolStatus]:
    """Return the state of each pool of the cluster."""
    raise NotImplementedError


def stop_pool(name: str) -> bool:
    """End the pool of this name; return False if there is none."""
    raise NotImplementedError
