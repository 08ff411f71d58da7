"""What a job brings along, as additions to its ``runtime_env``: the description of a call, and this package itself.

A small call is a variable of the job's environment. A large one is a file in a package that Ray uploads once per
content, because the answer to every poll of the cluster's jobs repeats the variables of every job.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tradewind
from tradewind.calls.callables import Call
from tradewind.calls.errors import SpecError

CALL_ENTRYPOINT = "python -u -m tradewind.runtime.run_callable"
CALL_VARIABLE = "TRADEWIND_CALL"
MOST_BYTES_IN_VARIABLE = 8 * 1024
_IN_FILE = "file:"
_FILE = "call.json"


@contextmanager
def call_runtime_env(call: Call, runtime_env: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """``runtime_env`` with ``call`` in it, for a job whose entrypoint is ``CALL_ENTRYPOINT``; submit it meanwhile."""
    text = call.to_json()
    if len(text) <= MOST_BYTES_IN_VARIABLE:
        yield _with_variable(runtime_env, text)
        return
    with tempfile.TemporaryDirectory(prefix="tradewind-call-") as scratch:
        name = f"tradewind_call_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        folder = Path(scratch, name)
        folder.mkdir()
        (folder / _FILE).write_text(text)
        yield _with_module(_with_variable(runtime_env, f"{_IN_FILE}{name}"), folder)


def read_call() -> Call:
    """The call that this job brings along.

    Raises:
        SpecError: There is none.
    """
    text = os.environ.get(CALL_VARIABLE, "")
    if text.startswith(_IN_FILE):
        places = [Path(folder, text.removeprefix(_IN_FILE), _FILE) for folder in sys.path]
        text = next((place.read_text() for place in places if place.is_file()), "")
    if not text:
        raise SpecError(f"{CALL_VARIABLE} names no call: this program is run by Airflow's Ray tasks.")
    return Call.from_json(text)


def ship_tradewind(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """``runtime_env`` with this package in it, for a cluster whose image lacks it, or has another version."""
    return _with_module(runtime_env, Path(tradewind.__file__).parent)


def _with_variable(runtime_env: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), CALL_VARIABLE: text}}


def _with_module(runtime_env: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {**runtime_env, "py_modules": [*(runtime_env.get("py_modules") or []), str(folder)]}
