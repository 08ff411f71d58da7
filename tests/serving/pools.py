"""Pools of tiny engines, and clients of them."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil

from tests.serving import tiny_engine
from tests.support.waiting import limit_s, until
from tradewind.serving.config import ServingConfig
from tradewind.serving.pool import NAMESPACE, PoolStatus, ServedPool
from tradewind.steps import Cpu

LOST: Final = (urllib.error.URLError, ConnectionError, TimeoutError)
_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def tiny_config(log: Path, *arguments: str, **options: Any) -> ServingConfig:
    """Return the config of tiny engines that write their requests into ``log``."""
    command = ("python", tiny_engine.__file__, "--port", "{port}", "--log", str(log), *arguments)
    return ServingConfig(**{
        "model": "tiny", "engine": "command", "command": command, "resources": Cpu(0.25), **options
    })  # fmt: skip


def events(log: Path, event: str) -> list[dict[str, Any]]:
    """Return the lines of the engines' log with this event."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if line["event"] == event]


def post(pool: ServedPool, path: str, body: Any, token: str | None = None) -> tuple[int, bytes]:
    """Send one request; return status and body."""
    headers = {"Authorization": f"Bearer {pool.token if token is None else token}"}
    request = urllib.request.Request(pool.address + path, None if body is None else json.dumps(body).encode(), headers)
    try:
        with _opener.open(request, timeout=limit_s()) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def complete(pool: ServedPool, prompt: Any, *, retries: bool = False) -> str:
    """Return what the pool answers to a prompt; with ``retries`` as a plain client that retries after 503."""
    deadline = time.monotonic() + limit_s()
    while True:
        try:
            status, body = post(pool, "/completions", {"prompt": prompt, "max_tokens": 8})
        except LOST:
            if not retries or time.monotonic() > deadline:
                raise
            status, body = 503, b""
        if status != 503 or not retries or time.monotonic() > deadline:
            assert status == 200, body
            return str(json.loads(body)["choices"][0]["text"])
        time.sleep(0.2)


def complete_all(pool: ServedPool, prompts: Sequence[str], *, retries: bool = False) -> Callable[[], list[str]]:
    """Send all prompts at once; the function returned waits for the answers."""
    threads = ThreadPoolExecutor(len(prompts))
    begun: list[Future[str]] = [threads.submit(complete, pool, prompt, retries=retries) for prompt in prompts]

    def answers() -> list[str]:
        with threads:
            return [each.result() for each in begun]

    return answers


def complete_stream(pool: ServedPool, body: Any) -> Callable[[], str]:
    """Ask for a stream; the function returned waits for its end."""
    thread = ThreadPoolExecutor(1)
    begun = thread.submit(post, pool, "/completions", body)

    def text() -> str:
        with thread:
            return begun.result()[1].decode()

    return text


def answers_of(prompts: Sequence[str]) -> list[str]:
    """Return what every engine answers to these."""
    return [tiny_engine.answer_text(prompt, 8) for prompt in prompts]


def ready_engines(pool: ServedPool, count: int) -> PoolStatus:
    """Wait until this many engines are ready."""
    until(lambda: _ready(pool.status()) == count, f"{count} ready engines", pool.status)
    return pool.status()


def _ready(status: PoolStatus) -> int:
    return sum(engine.state == "ready" for engine in status.engines)


def actor_pid(name: str) -> int:
    """Return the process of a head or worker."""
    import ray

    actor = ray.get_actor(name, namespace=NAMESPACE)
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=limit_s()))


def worker_of(engine: int) -> int:
    """Return the process of the worker of an engine, which a guard started."""
    guard = psutil.Process(engine).parent()
    assert guard is not None
    return guard.ppid()


def some_prompts(count: int = 16) -> list[str]:
    """Return texts that no other test sends."""
    return [f"{uuid.uuid4()} {number}" for number in range(count)]
