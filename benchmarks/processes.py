"""What is measured in a process of its own, and servers whose work must not count as that of who asks them.

``python -m benchmarks.processes measure|serve MODULE:FUNCTION ARGUMENTS``: call the function and print what it returns
as JSON; or serve what it returns until the standard input ends, and for each line of it tell the usage since the last.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from tradewind.rehearsal.cloud.loopback_server import LoopbackServer


def in_fresh_process(function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None) -> Any:
    """What ``function`` returns in a process that has none of this one's settings of Airflow."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    command = _command("measure", function, arguments)
    done = subprocess.run(command, cwd=ROOT, env={**kept, **(env or {})}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Usage:
    """What a server did since it was asked last: requests by kind, and CPU seconds."""

    requests: Mapping[str, int]
    cpu_s: float


class ServerProcess:
    """A server in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = str(self._next())

    def usage(self) -> Usage:
        """What it did since this was asked last."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Usage(**self._next())

    def _next(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The server of the benchmark ended with exit code {self._process.wait()}.")
        return json.loads(line)


@contextmanager
def served(make: Callable[..., LoopbackServer], *arguments: Any) -> Iterator[ServerProcess]:
    """Serve what ``make`` returns."""
    command = _command("serve", make, arguments)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield ServerProcess(process)
        finally:
            process.stdin.close()


def _command(way: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[str]:
    name = f"{function.__module__}:{function.__name__}"
    return [sys.executable, "-m", "benchmarks.processes", way, name, json.dumps(arguments)]


def _serve(server: LoopbackServer) -> None:
    server.start()
    print(json.dumps(server.url), flush=True)
    cpu = time.process_time()
    for _ in sys.stdin:
        requests, before, cpu = dict(server.requests), cpu, time.process_time()
        server.requests.clear()
        print(json.dumps({"requests": requests, "cpu_s": cpu - before}), flush=True)
    server.stop()


if __name__ == "__main__":
    module, name = sys.argv[2].split(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[3]))
    if sys.argv[1] == "serve":
        _serve(result)
    else:
        print(json.dumps(result))
