"""Start Python programs as forks of a process that has already imported Levanter, which costs as much as a training.

Each program is a separate process: it has its own standard streams and environment, and a test can kill it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SERVE: Final = """
import gc, importlib, json, os, signal, sys, traceback

def run(request):
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(request["folder"] + "/" + name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(request["env"])
    sys.argv = ["-c", *request["arguments"]]
    code = 0
    try:
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

def run_and_wait(request):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        run(request)
    print(child, flush=True)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    file = request["folder"] + "/code"
    with open(file + ".new", "w") as new:
        new.write(str(code))
    os.rename(file + ".new", file)
    os._exit(0)

gc.disable()
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()
gc.enable()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in iter(sys.stdin.readline, ""):
    if not os.fork():
        run_and_wait(json.loads(line))
"""
POLL_S: Final = 0.05
LEVANTER: Final = (
    "jax.experimental.multihost_utils",
    "levanter.main.train_lm",
    "levanter.optim.config",
    "tradewind.recipes.evaluate_lm",
    "tradewind.recipes.token_cache",
    "tradewind.recipes.train_lm",
)


class PreparedProgram:
    """A running program, with the part of the ``subprocess.Popen`` interface that tests use."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self._folder = folder

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended the program; None while it runs."""
        try:
            return int((self._folder / "code").read_text())
        except FileNotFoundError:
            return None

    def kill(self) -> None:
        """Kill the program if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float = 600.0) -> tuple[str, str]:
        """Wait for the program's end, and return its stdout and stderr. Raises ``TimeoutError``."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Process {self.pid} has not ended in {timeout:g} s.")
            time.sleep(POLL_S)
        return (self._folder / "out").read_text(), (self._folder / "err").read_text()


class PreparedPython:
    """Start programs that find ``modules`` imported, in the environment ``env`` plus their own variables."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str]) -> None:
        command = [sys.executable, "-u", "-c", SERVE, *modules]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(command, env=dict(env), stdin=pipe, stdout=pipe, text=True)
        self._folder = tempfile.TemporaryDirectory(prefix="prepared-")

    def start(self, code: str, *arguments: str, env: Mapping[str, str]) -> PreparedProgram:
        """Start ``python -c code arguments...`` with these additional variables."""
        assert self._server.stdin is not None and self._server.stdout is not None
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        request = {"code": code, "arguments": arguments, "env": dict(env), "folder": str(folder)}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return PreparedProgram(int(self._server.stdout.readline()), folder)

    def end(self) -> None:
        """Stop the server and delete the programs' output."""
        self._server.communicate()
        self._folder.cleanup()


@contextmanager
def prepared_to_train(home: Path, **env: str) -> Iterator[PreparedPython]:
    """Yield a server for programs that import Levanter and compute on CPUs."""
    cpu = {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "TF_CPP_MIN_LOG_LEVEL": "3"}
    python = PreparedPython(LEVANTER, os.environ | {"HOME": str(home), "RAY_AUTH_MODE": "disabled"} | cpu | env)
    try:
        yield python
    finally:
        python.end()
