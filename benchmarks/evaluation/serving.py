"""A pool on a local Ray, and clients that send requests to it and to its engine alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.harness import ROOT, median
from tradewind.rehearsal.local.processes import LocalStack, free_port
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.serving.config import ServingConfig
from tradewind.serving.pool import ServedPool, ensure_pool
from tradewind.steps import Cpu

AT_ONCE: Final = (16, 256)
_DELAY_S: Final = "2.0"
"""Seconds of an answer: a hundred tokens of a model take longer, with many at once."""
_PROMPT: Final = "What does a request cost on its way? " * 4
"""It fits the tiny model's context."""
_MAX_TOKENS: Final = 16
_ENGINE: Final = str(ROOT / "tests" / "serving" / "tiny_engine.py")
_PAUSE_S: Final = 0.02


def measure_throughput(engine: str, rounds: int, seconds_each: float) -> dict[str, list[dict[str, Any]]]:
    """Return, for each number of requests at once, rounds of both ways."""
    with cluster() as stack:
        pool = ensure_pool(_config(engine, stack.root))
        pool.wait_ready()
        alone = f"http://127.0.0.1:{engine_port(stack)}/v1"
        found: dict[str, list[dict[str, Any]]] = {}
        for at_once in AT_ONCE:
            ways = {"alone": (alone, ""), "pool": (pool.address, pool.token)}
            for way in ways.values():
                _send_all(*way, at_once, min(2.0, seconds_each))  # compilations, connections
            order = list(ways)
            for number in range(rounds):
                turn = order if number % 2 == 0 else order[::-1]
                measured = {way: _send_all(*ways[way], at_once, seconds_each) for way in turn}
                found.setdefault(str(at_once), []).append(measured)
        pool.stop()
        return found


def measure_recovery(rounds: int) -> dict[str, list[float]]:
    """Return how long each killed worker's pool does not answer, and how long the engine alone takes for its start."""
    with cluster() as stack:
        pool = ensure_pool(_config("tiny", stack.root, delay="0"))
        pool.wait_ready()
        recoveries = []
        for _ in range(rounds):
            _first_answer(pool)
            guard = _engine(stack).parent()
            assert guard is not None
            begun = time.monotonic()
            os.kill(guard.ppid(), signal.SIGKILL)
            time.sleep(_PAUSE_S)
            _first_answer(pool)
            recoveries.append(time.monotonic() - begun)
        pool.stop()
        return {"recovery_s": recoveries, "start_s": [_start_alone() for _ in range(rounds)]}


@contextmanager
def cluster() -> Iterator[LocalStack]:
    import ray

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        stack = LocalStack(Path(name))
        local = LocalRay(stack, token="", num_cpus=4)
        local.start()
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(address=local.gcs_address, _node_ip_address=local.gcs_address.partition(":")[0], log_to_driver=False)
        try:
            yield stack
        finally:
            ray.shutdown()
            local.stop()


def _config(engine: str, folder: Path, delay: str = _DELAY_S) -> ServingConfig:
    shared: dict[str, Any] = {"resources": Cpu(1), "max_concurrent": max(AT_ONCE)}
    if engine == "tiny":
        command = ("python", _ENGINE, "--port", "{port}", "--delay", delay)
        return ServingConfig("tiny", "command", command=command, **shared)
    from tests.serving.exports import tiny_export

    return ServingConfig(str(tiny_export(folder / "model")), engine, served_name="tiny", **shared)


def _engine(stack: LocalStack) -> psutil.Process:
    """Return the engine's process, the only one of the cluster with its port on the command line."""
    for process in stack.processes():
        try:
            words = process.cmdline()
            if "--port" in words and "--" not in words:  # its guard has both
                return process
        except psutil.Error:
            continue
    raise RuntimeError("no engine runs")


def engine_port(stack: LocalStack) -> int:
    words = _engine(stack).cmdline()
    return int(words[words.index("--port") + 1])


def _send_all(address: str, token: str, at_once: int, seconds_each: float) -> dict[str, Any]:
    """Keep this many requests in flight for some time, in a process of its own; return rate and latency."""
    command = [sys.executable, "-m", "benchmarks.evaluation.serving", address, token, str(at_once), str(seconds_each)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    rate, latency = map(float, done.stdout.split())
    return {"rate": rate, "latency_s": latency}


async def _client(address: str, token: str, at_once: int, seconds_each: float) -> tuple[float, float]:
    import aiohttp

    latencies: list[float] = []
    body = {"model": "tiny", "prompt": _PROMPT, "max_tokens": _MAX_TOKENS}
    until = time.monotonic() + seconds_each

    async def one_after_another(session: aiohttp.ClientSession, offset_s: float) -> None:
        await asyncio.sleep(offset_s)  # answers of a model differ in length, so its clients are not in step
        while time.monotonic() < until:
            begun = time.monotonic()
            async with session.post(f"{address}/completions", json=body) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise RuntimeError(f"{address} answered {answer.status}: {text[:500]}")
            latencies.append(time.monotonic() - begun)

    headers = {"Authorization": f"Bearer {token}"}
    begun = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        await asyncio.gather(
            *(one_after_another(session, float(_DELAY_S) * number / at_once) for number in range(at_once))
        )
    return len(latencies) / (time.monotonic() - begun), median(latencies) or 0.0


def _first_answer(pool: ServedPool) -> None:
    """Send a request until it is answered, as a client with plain retries."""
    import requests

    session = requests.Session()
    session.trust_env = False  # a proxy cannot reach this machine
    while True:
        headers = {"Authorization": f"Bearer {pool.token}"}
        try:
            answer = session.post(f"{pool.address}/completions", json={"prompt": "a"}, headers=headers, timeout=60)
            if answer.status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(_PAUSE_S)


def _start_alone() -> float:
    """Return how long the engine takes from its process to its first healthy answer."""
    import requests

    session = requests.Session()
    session.trust_env = False
    port, begun = free_port(), time.monotonic()
    with subprocess.Popen([sys.executable, _ENGINE, "--port", str(port)]) as process:
        while True:
            try:
                if session.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            except requests.RequestException:
                time.sleep(_PAUSE_S)
        process.kill()
    return time.monotonic() - begun


if __name__ == "__main__":
    _address, _token, _at_once, _seconds = sys.argv[1:]
    print(*asyncio.run(_client(_address, _token, int(_at_once), float(_seconds))))
