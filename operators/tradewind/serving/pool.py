"""Start and use pools: engines that serve one model behind one OpenAI-compatible address on a Ray cluster.

A pool's head is a named detached actor, so Ray itself starts it once however many users ask (``head``). Its engines run
in named detached actors, too (``worker``). All end at the timeout of the pool, or when it is idle.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tradewind.runtime.driver.child import is_head_lost
from tradewind.serving.config import PoolLimits, ServingConfig, pool_name
from tradewind.text import single_line

NAMESPACE: Final = "tradewind.serving"
_READY_TIMEOUT_S: Final = 3600.0
HEAD_RESTART_S: Final = 120.0
"""How long a head may take to answer: it may have been killed, and Ray restarts it."""
_LIST_S: Final = 10.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.5
_RECONNECT_S: Final = 20.0
_WORKER: Final = "-worker-"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_reconnecting: Final = threading.Lock()
_connected_here = False
"""Whether ``connect`` has connected this process, and not Ray or the user's program."""


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
        state: ``starting`` (no engine is ready), ``ready``, ``failed`` (engines do not start), ``ending``,
            or ``unresponsive`` (its head does not answer).
        engines: Its engines.
        queued: Requests that wait for an engine.
        served: Requests that were answered.
        resent: Requests that were sent again after their engine was lost.
        prompt_tokens, completion_tokens: Sums over the answers that count them.
        engine_losses: Engines that ended while they served.
        start_failures: Engines that did not start, one after another.
        last_error: The last reason of these, with the end of the engine's log, without secrets.
        ends_at: When its timeout is, in epoch seconds.
        path: Of the model.
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
    path: str = ""

    def __str__(self) -> str:
        engines = (f"{each.name} is {each.state}{f' ({each.detail})' if each.detail else ''}" for each in self.engines)
        return f"Pool {self.name} is {self.state}: {', '.join(engines) or 'no engine yet'}."


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

    def wait_ready(self, timeout_s: float = _READY_TIMEOUT_S) -> PoolStatus:
        """Wait until an engine is ready; print each new state.

        Raises:
            PoolError: Engines do not start, with the end of their log; or the time is over.
        """
        deadline, printed = time.monotonic() + timeout_s, None
        while True:
            status = self._call("status", is_used=True)
            new = status.state, [(engine.name, engine.state) for engine in status.engines]
            if new != printed:
                print(status, flush=True)
            printed = new
            if status.state == "ready":
                return status
            if status.state == "failed":
                raise PoolError(f"Pool {self.name}: its engines do not start. {status.last_error}")
            if time.monotonic() > deadline:
                raise PoolError(f"No engine was ready within {timeout_s:.0f} s. {status}")
            time.sleep(_POLL_S)

    def status(self) -> PoolStatus:
        """Return the pool's state.

        Raises:
            PoolError: The pool has ended.
        """
        return self._call("status")

    def admit(self, token_sha256: str) -> None:
        """Let requests in with another token, of which this is the SHA-256 in hexadecimal digits.

        Raises:
            PoolError: It is none, or the pool has ended.
        """
        if not _SHA256.fullmatch(token_sha256):
            raise PoolError("A pool takes the SHA-256 of a token, 64 hexadecimal digits, and not the token itself.")
        self._call("join", token_sha256)

    def rejoin(self) -> ServedPool:
        """Return the pool with its present address, in which the token counts again.

        Raises:
            PoolError: The pool has ended.
        """
        status = self._call("join", hashlib.sha256(self.token.encode()).hexdigest())
        return replace(self, address=status.address)

    def stop(self) -> None:
        """End the pool and all its engines, and wait for that."""
        stop_pool(self.name)

    def _call(self, method: str, *arguments: Any, limit_s: float = HEAD_RESTART_S, **options: Any) -> PoolStatus:
        """Call the head; wait while Ray restarts it.

        Raises:
            PoolError: The pool has ended, or does not answer.
        """
        import ray

        deadline, reconnects_at = time.monotonic() + limit_s, time.monotonic() + _RECONNECT_S
        while True:
            try:
                head = ray.get_actor(self.name, namespace=NAMESPACE)
                asked = getattr(head, method).remote(*arguments, **options)
                answer: PoolStatus = ray.get(asked, timeout=min(limit_s, _RECONNECT_S))
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError) as error:
                if time.monotonic() > deadline:
                    raise PoolError(f"Pool {self.name} does not answer: {single_line(error)}") from None
                if time.monotonic() > reconnects_at:
                    reconnects_at += _RECONNECT_S
                    _reconnect()
                time.sleep(_POLL_S)
            except (ValueError, ray.exceptions.ActorDiedError):
                raise PoolError(f"Pool {self.name} has ended.") from None
            except ray.exceptions.RayError as error:
                raise PoolError(f"Pool {self.name} has ended: {single_line(error)}") from None
            else:
                return answer


def ensure_pool(config: ServingConfig, *, limits: PoolLimits | None = None) -> ServedPool:
    """Return the pool that serves this config; start it if the cluster has none. Return before it is ready.

    It runs inside a Ray job or driver; a process that is not connected to Ray connects to the cluster of its node.

    Args:
        config: The model and its engines.
        limits: How long the pool waits for its parts.

    Raises:
        PoolError: The cluster could never run it, or the model or engine is wrong.
    """
    from tradewind.serving.placement import why_infeasible

    connect()
    config, name = resolved(config)
    if name not in _heads() and (why := why_infeasible(config.resources)):
        raise PoolError(f"No engine can ever start here: {why}. Change the resources of the served model.")
    from tradewind.serving.head import start_head

    pool = ServedPool("", secrets.token_hex(), name)
    deadline = time.monotonic() + HEAD_RESTART_S
    while True:
        start_head(name, config, limits or PoolLimits())
        try:
            return pool.rejoin()
        except PoolError:  # the former pool of this name is just ending
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def resolved(config: ServingConfig) -> tuple[ServingConfig, str]:
    """Return the config with the export that its model is now, and the name of the pool that serves that.

    A training that continues, or is made anew at its path, so gets another pool, with its new weights.

    Raises:
        PoolError: The model or engine is wrong.
    """
    from tradewind.serving.engines import check_engine, needs_model
    from tradewind.serving.weights import present_model

    try:
        check_engine(config)
        if not needs_model(config):
            return config, pool_name(config)
        model, state = present_model(config.model)
    except ValueError as error:
        raise PoolError(f"The model cannot be served: {error}") from None
    present = replace(config, model=model, served_name=config.name_in_api)
    return present, pool_name(present, state)


def find_pools() -> list[PoolStatus]:
    """Return the state of each pool of the cluster, also of one whose head does not answer."""
    connect()
    found = []
    for name in _heads():
        try:
            found.append(ServedPool("", "", name)._call("status", limit_s=_LIST_S))
        except PoolError:
            if name in _heads():  # else it has just ended
                found.append(PoolStatus(name, "", "", "unresponsive"))
    return found


def stop_pool(name: str) -> bool:
    """End the pool of this name, and wait for that; return False if there is none."""
    import ray

    connect()
    if name not in _heads():
        return False
    deadline = time.monotonic() + _STOP_S
    with suppress(ValueError, ray.exceptions.RayError):
        ray.get_actor(name, namespace=NAMESPACE).stop.remote()
    while _actors_of(name):
        if time.monotonic() > deadline:  # the head was frozen, and its next life knows of no end
            for actor in _actors_of(name):
                with suppress(ValueError, ray.exceptions.RayError):
                    ray.kill(ray.get_actor(actor, namespace=NAMESPACE))
        time.sleep(_POLL_S)
    return True


def connect() -> None:
    """Connect to the cluster of this node, unless this process is connected.

    Raises:
        PoolError: There is none.
    """
    import ray

    global _connected_here
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise PoolError(f"There is no Ray cluster here, which a pool needs: {single_line(error)}") from None
    _connected_here = True


def _reconnect() -> None:
    """Connect anew: a connection never learns that the restarted head of the cluster has moved the pool's, too.

    Not while the cluster's head is away, since Ray ends a process that connects then.
    """
    import ray

    with _reconnecting:
        if _connected_here and not is_head_lost():
            ray.shutdown()
            connect()


def _heads() -> list[str]:
    return [name for name in _actors() if _WORKER not in name]


def _actors_of(pool: str) -> list[str]:
    return [name for name in _actors() if name.partition(_WORKER)[0] == pool]


def _actors() -> list[str]:
    import ray

    named = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in named if entry["namespace"] == NAMESPACE]
