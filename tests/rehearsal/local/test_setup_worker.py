"""The local setup worker starts a worker exactly as Ray does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any
from unittest.mock import patch

import pytest
from ray._private.runtime_env.context import RuntimeEnvContext
from ray.core.generated.common_pb2 import Language

from tradewind.rehearsal.local import setup_worker
from tradewind.rehearsal.local.ray_start import WORKER

COMMAND = ["/ray/default_worker.py", "--node-ip-address=127.0.0.1", "--a=b c'd", "--startup-token=7"]


class ExecutedError(Exception):
    """Raised instead of replacing this process with another program."""


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the programs that this process would have executed, with their environments."""
    programs: list[Any] = []

    def execute(file: str, args: list[str]) -> None:
        programs.append((file, args, dict(os.environ)))
        raise ExecutedError

    monkeypatch.setattr(os, "execvp", execute)
    return programs


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"env_vars": {"A": "1", "B": "${SET}/x:${NOT_SET}", "C": "$SET", "D": ""}},
        {"command_prefix": ["cd", "/tmp/a\\ b", "&&"], "env_vars": {"PYTHONPATH": "/tmp/a b"}},
        {"py_executable": "uv run", "override_worker_entrypoint": "/other/worker.py"},
        {"command_prefix": None, "env_vars": None, "py_executable": None, "java_jars": ["a.jar"]},
    ],
    ids=str,
)
def test_setup_worker_executes_same_command_as_ray(context: dict[str, Any], executed: list[Any]) -> None:
    words = json.dumps(RuntimeEnvContext(**context).__dict__)
    with patch.dict(os.environ, SET="here"), pytest.raises(ExecutedError):
        RuntimeEnvContext.deserialize(words).exec_worker([*COMMAND], Language.PYTHON)
    with patch.dict(os.environ, SET="here"), pytest.raises(ExecutedError):
        setup_worker.main([COMMAND[0], f"--serialized-runtime-env-context={words}", *COMMAND[1:], "--language=PYTHON"])
    of_ray, of_rehearsal = executed
    assert of_rehearsal == of_ray


def test_setup_worker_imports_nothing_of_ray() -> None:
    command = [sys.executable, "-X", "importtime", str(WORKER), "--version", "--language=PYTHON"]
    command += ["--serialized-runtime-env-context={}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Python 3.")
    assert "argparse" in done.stderr and "ray" not in done.stderr.replace("array", "")
