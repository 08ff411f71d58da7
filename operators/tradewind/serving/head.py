"""The head of a pool: a named detached actor with the HTTP server, which starts, watches and replaces the workers.

Ray restarts it if it is killed; if it is frozen, the kernel kills it (``KernelTimer``). Then it takes its port, tokens
and deadline from Ray's key-value store, and continues with the live workers, which are named actors, too. It ends
itself, and all of them, at the deadline, when the pool is idle, or when a user asks for that.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NoReturn

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from tradewind.machine import boot_time
from tradewind.runtime.driver.process_guard import KernelTimer
from tradewind.runtime.pods.nodes import NodeWatch
from tradewind.serving.balancer import Balancer, Engine, Scaler
from tradewind.serving.config import PoolLimits, ServingConfig
from tradewind.serving.front import Front
from tradewind.serving.placement import worker_options
from tradewind.serving.pool import NAMESPACE, EngineStatus, PoolStatus
from tradewind.serving.worker import EngineWorker, WorkerReport
from tradewind.text import single_line

TICK_S: Final = 0.25
_MAX_START_FAILURES: Final = 3
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0
_DRAIN_MARGIN_S: Final = 5.0
"""Before a node goes, the requests of its engine are sent to others."""
_END_S: Final = 10.0
_FROZEN_S: Final = 30.0
_ALIVE_S: Final = 1.0
_CONCURRENCY: Final = 32


@dataclass(frozen=True)
class PoolMemory:
    """What a head keeps in Ray's key-value store for its next life.

    Attributes:
        actor: ID of the actor that wrote it: a later pool of the same name starts anew.
        port: Of the HTTP server.
        ends_at: Deadline in epoch seconds.
        tokens: SHA-256 of the users' tokens.
    """

    actor: str
    port: int
    ends_at: float
    tokens: tuple[str, ...] = ()


@dataclass
class _Worker:
    """One worker, as the head sees it."""

    name: str
    actor: Any
    started_at: float
    report: WorkerReport | None = None
    asked: Any = None
    """The poll that is under way, and when it began."""
    asked_at: float = 0.0
    heard_at: float = 0.0
    has_served: bool = False
    drain_by: float | None = None
    """When its requests must have gone elsewhere (epoch seconds); set while it drains."""

    @property
    def state(self) -> str:
        if self.drain_by is not None:
            return "draining"
        return "waiting" if self.report is None else self.report.state


class PoolHead:
    """The actor; its methods run in threads, the server on an event loop, the rest in ``_control``."""

    def __init__(self, name: str, config: ServingConfig, limits: PoolLimits, ends_at: float) -> None:
        self._name, self._config, self._limits = name, config, limits
        self._balancer = Balancer(config.max_concurrent)
        self._front = Front(self._balancer, config.request_timeout_s)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="front").start()
        self._lock = threading.Lock()
        self._workers: dict[str, _Worker] = {}
        self._next_number = 0
        self._scaler = Scaler(config.replicas, config.most_replicas, config.max_concurrent, limits)
        self._losses = self._start_failures = 0
        self._start_at = 0.0
        self._last_error = ""
        self._nodes = NodeWatch()
        self._must_end = threading.Event()
        self._is_ending = False
        self._ip = str(ray.util.get_node_ip_address())
        self._memory = self._remember(ends_at)
        self._find_workers()
        threading.Thread(target=self._control, daemon=True, name="control").start()
        threading.Thread(target=_extend_life, daemon=True, name="extend-life").start()

    # ---- for users

    def join(self, token_sha256: str) -> PoolStatus:
        """Let requests with this token in, and try again to start engines if that has failed.

        Raises:
            RuntimeError: The pool is ending.
        """
        with self._lock:
            if self._state() == "ending":
                raise RuntimeError("This pool is ending.")
            if token_sha256 not in self._memory.tokens:
                self._memory = replace(self._memory, tokens=(*self._memory.tokens, token_sha256))
                self._write(self._memory)
            if self._start_failures >= _MAX_START_FAILURES:
                self._start_failures, self._start_at = 0, 0.0
        self._front.tokens.add(token_sha256)
        return self.status(is_used=True)

    def status(self, *, is_used: bool = False) -> PoolStatus:
        """Return the state; ``is_used`` says that a user waits, so that the pool is not idle."""
        if is_used:
            self._balancer.touch()
        engines = self._balancer.engines
        counts = self._front.counts
        return PoolStatus(
            self._name,
            f"http://{self._ip}:{self._memory.port}/v1",
            self._config.name_in_api,
            self._state(),
            tuple(self._engine_status(worker, engines.get(worker.name)) for worker in list(self._workers.values())),
            self._balancer.queued,
            counts.served,
            counts.resent,
            counts.prompt_tokens,
            counts.completion_tokens,
            self._losses,
            self._start_failures,
            self._last_error,
            self._memory.ends_at,
            self._config.model,
        )

    def stop(self) -> None:
        """End the pool soon."""
        self._must_end.set()

    def _state(self) -> str:
        if self._is_ending or self._must_end.is_set():
            return "ending"
        if self._balancer.has_open:
            return "ready"
        return "failed" if self._start_failures >= _MAX_START_FAILURES else "starting"

    @staticmethod
    def _engine_status(worker: _Worker, engine: Engine | None) -> EngineStatus:
        report = worker.report
        return EngineStatus(
            worker.name,
            worker.state,
            "" if report is None else report.node,
            0 if engine is None else engine.in_flight,
            0 if engine is None else engine.served,
            "" if report is None else single_line(report.error or report.detail),
        )

    # ---- what survives a kill

    def _remember(self, ends_at: float) -> PoolMemory:
        """Start the server as this actor's former life had it, or anew."""
        actor = ray.get_runtime_context().get_actor_id() or ""
        kept = _internal_kv_get(self._key, namespace=NAMESPACE.encode())
        memory = PoolMemory(actor, 0, ends_at)
        if kept:
            fields = json.loads(kept)
            if fields["actor"] == actor:
                memory = PoolMemory(**{**fields, "tokens": tuple(fields["tokens"])})
        self._front.tokens.update(memory.tokens)
        memory = replace(memory, port=self._listen(memory.port))
        self._write(memory)
        return memory

    def _listen(self, port: int) -> int:
        try:
            return asyncio.run_coroutine_threadsafe(self._front.start(self._ip, port), self._loop).result()
        except OSError:
            if port == 0:
                raise
        return asyncio.run_coroutine_threadsafe(self._front.start(self._ip, 0), self._loop).result()

    @property
    def _key(self) -> bytes:
        return self._name.encode()

    def _write(self, memory: PoolMemory) -> None:
        _internal_kv_put(self._key, json.dumps(asdict(memory)).encode(), overwrite=True, namespace=NAMESPACE.encode())

    def _find_workers(self) -> None:
        """Continue with the workers of this actor's former life."""
        prefix = f"{self._name}-worker-"
        for entry in ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] != NAMESPACE or not entry["name"].startswith(prefix):
                continue
            try:
                actor = ray.get_actor(entry["name"], namespace=NAMESPACE)
            except ValueError:  # it has just ended
                continue
            now = time.monotonic()
            self._workers[entry["name"]] = _Worker(entry["name"], actor, now, heard_at=now)
            self._next_number = max(self._next_number, int(entry["name"].removeprefix(prefix)) + 1)
        self._scaler.wanted = max(self._scaler.wanted, min(len(self._workers), self._scaler.maximum))

    # ---- control

    def _control(self) -> None:
        while True:
            try:
                if self._should_end():
                    break
                self._poll_workers()
                self._drain_workers()
                self._scale()
            except Exception as error:  # an outage of Ray's own head, for example
                print(f"Pool {self._name}: {type(error).__name__}: {error}", flush=True)
                time.sleep(TICK_S)
        self._end()

    def _should_end(self) -> bool:
        now, idle_s = time.time(), time.monotonic() - self._balancer.active_at
        is_idle = idle_s >= self._config.idle_timeout_s and not self._balancer.in_flight and not self._balancer.queued
        if now >= self._memory.ends_at:
            print(f"Pool {self._name} ends: its timeout is over.", flush=True)
        elif is_idle:
            print(f"Pool {self._name} ends: it has had no request for {idle_s:.0f} s.", flush=True)
        return now >= self._memory.ends_at or is_idle or self._must_end.is_set()

    def _poll_workers(self) -> None:
        """Ask each worker, and take what the others have answered meanwhile."""
        for worker in self._workers.values():
            if worker.asked is None:
                worker.asked, worker.asked_at = worker.actor.poll.remote(), time.monotonic()
        asked = {worker.asked: worker for worker in self._workers.values()}
        if not asked:
            time.sleep(TICK_S)
            return
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=TICK_S)
        for ref in done:
            self._take_answer(asked[ref], ref)
        for worker in list(self._workers.values()):
            if worker.heard_at and time.monotonic() - worker.heard_at > self._limits.silent_s:
                self._remove(worker, f"Worker {worker.name} has not answered for {self._limits.silent_s:.0f} s.")
        if len(done) == len(asked):
            time.sleep(TICK_S)

    def _take_answer(self, worker: _Worker, ref: Any) -> None:
        asked_at, worker.asked = worker.asked_at, None
        try:
            report: WorkerReport = ray.get(ref)
        except ray.exceptions.ActorUnavailableError:
            return
        except ray.exceptions.RayError as error:
            self._remove(worker, f"Worker {worker.name} was lost: {single_line(error)}")
            return
        worker.report, worker.heard_at = report, time.monotonic()
        if report.state in ("failed", "lost"):
            worker.has_served = worker.has_served or report.state == "lost"
            self._remove(worker, f"Worker {worker.name} on {report.node}: {report.error}")
        elif report.state == "ready":
            if not worker.has_served:
                worker.has_served, self._start_failures = True, 0
            self._on_loop(self._note_ready, worker, asked_at)

    def _note_ready(self, worker: _Worker, asked_at: float) -> None:
        report = worker.report
        assert report is not None
        if worker.name in self._balancer.engines:
            self._balancer.note_up(worker.name, asked_at)
        elif worker.drain_by is None and worker.name in self._workers:
            self._balancer.add(Engine(worker.name, report.url, report.token))

    def _remove(self, worker: _Worker, why: str) -> None:
        """Forget a worker that has ended, and send its requests to others."""
        del self._workers[worker.name]
        self._on_loop(self._balancer.lose, worker.name)
        if worker.drain_by is None:
            self._last_error = why
            if worker.has_served:
                self._losses, self._start_failures = self._losses + 1, 0
            elif worker.report is None or worker.report.state == "failed":  # else its host was lost
                self._note_start_failure()
        print(f"Pool {self._name}: {why}", flush=True)
        _kill(worker.actor)

    def _note_start_failure(self) -> None:
        self._start_failures += 1
        pause_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** (self._start_failures - 1))
        self._start_at = time.monotonic() + pause_s
        self._front.why_not_ready = "its engines do not start: " + single_line(self._last_error)

    def _drain_workers(self) -> None:
        """Let engines on nodes that go finish what they have; others get what is left."""
        nodes = {worker.report.node_id for worker in self._workers.values() if worker.report is not None}
        going, dead = self._nodes.draining(nodes), self._nodes.dead(nodes)
        for worker in list(self._workers.values()):
            if worker.report is None:
                if worker.drain_by is not None:
                    self._remove(worker, f"Worker {worker.name} waits for resources that it does not need any more.")
                continue
            node = worker.report.node_id
            if node in dead:
                self._remove(worker, f"Worker {worker.name} was lost with its node {worker.report.node}.")
                continue
            if worker.drain_by is None and node in going:
                by = going[node]
                self._drain(worker, self._memory.ends_at if by is None else by - _DRAIN_MARGIN_S)
                print(f"Pool {self._name}: worker {worker.name} drains, since its node goes.", flush=True)
            engine = self._balancer.engines.get(worker.name)
            is_done = engine is None or engine.in_flight == 0
            if worker.drain_by is not None and (is_done or time.time() >= worker.drain_by):
                self._remove(worker, f"Worker {worker.name} has drained.")

    def _drain(self, worker: _Worker, by: float) -> None:
        worker.drain_by = by
        self._on_loop(self._balancer.drain, worker.name)

    def _scale(self) -> None:
        """Start or drain workers, so that there are as many as the pool wants."""
        ready = sum(engine.is_open for engine in list(self._balancer.engines.values()))
        wanted = self._scaler.decide(
            time.monotonic(), queued=self._balancer.queued, in_flight=self._balancer.in_flight, ready=ready
        )
        staying = [worker for worker in self._workers.values() if worker.drain_by is None]
        may_start = self._start_failures < _MAX_START_FAILURES or ready > 0  # else a user must come
        if may_start and time.monotonic() >= self._start_at:
            for _ in range(wanted - len(staying)):
                self._start_worker()
        for worker in sorted(staying, key=_how_useful)[: max(0, len(staying) - wanted)]:
            self._drain(worker, self._memory.ends_at)

    def _start_worker(self) -> None:
        name = f"{self._name}-worker-{self._next_number}"
        self._next_number += 1
        options = {
            "name": name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_concurrency": 4,
            **worker_options(self._config.resources),
        }
        actor = ray.remote(EngineWorker).options(**options)
        made = actor.remote(name, self._config, self._limits, self._memory.ends_at)
        self._workers[name] = _Worker(name, made, time.monotonic())

    def _on_loop(self, function: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    # ---- the end

    def _end(self) -> None:
        with self._lock:
            self._is_ending = True
        self._front.why_not_ready = "it is ending"
        for worker in self._workers.values():
            self._on_loop(self._balancer.drain, worker.name)
        ending = [worker.actor.end.remote() for worker in self._workers.values() if worker.report is not None]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=_END_S)
        for worker in self._workers.values():
            _kill(worker.actor)
        _internal_kv_del(self._key, namespace=NAMESPACE.encode())
        ray.kill(ray.get_runtime_context().current_actor)


def _extend_life() -> NoReturn:
    """Let the kernel kill this process once it is frozen: ``ray.kill`` does not always end a frozen one."""
    timer = KernelTimer(signal.SIGKILL)
    while True:
        timer.set(boot_time() + _FROZEN_S)
        time.sleep(_ALIVE_S)


def _how_useful(worker: _Worker) -> tuple[bool, float]:
    """Sort workers: those that do not serve yet first, then the youngest."""
    return worker.state == "ready", -worker.started_at


def _kill(actor: Any) -> None:
    try:
        ray.kill(actor)
    except Exception as error:  # it has ended already
        print(f"{type(error).__name__}: {error}", flush=True)


def start_head(name: str, config: ServingConfig, limits: PoolLimits) -> Any:
    """Return the head of this pool; start it on the cluster's head, which is not preempted, unless the cluster has it.

    A resource names the node: Ray 2.60 starts most actors without resources on other nodes than a soft affinity names.
    """
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_concurrency": _CONCURRENCY,
        "num_cpus": 0,
        "resources": {"node:__internal_head__": 0.001},
    }
    return ray.remote(PoolHead).options(**options).remote(name, config, limits, time.time() + config.timeout_s)
