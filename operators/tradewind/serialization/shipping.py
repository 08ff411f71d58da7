"""Results from a job, and the files and variables that a job brings.

A callable's result is the last line of the job's log: the job's marker, then JSON. It is small and meant for users and
XComs. Data belongs in storage, and its path in the result.

A job brings the description of a call and this package, as additions to its ``runtime_env``. A small call is a variable
of the job's environment. A large call is a file in a package that Ray uploads once per content, because the response to
every poll of the cluster's jobs repeats the variables of every job.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import math
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tradewind
from tradewind.serialization.callables import Call
from tradewind.serialization.errors import ResultError, SpecError
from tradewind.serialization.masking import Masker

MAX_RESULT_BYTES = 1_000_000


def result_marker(job: str) -> str:
    """Return the beginning of this job's result line."""
    return f"::tradewind-result:{job}::"


def result_line(result: Any, marker: str, masker: Masker | None = None) -> str:
    """Return the result line without secrets; masking it later could break the line.

    Raises:
        ResultError: JSON cannot hold it, or it is too large.
    """
    try:
        text = json.dumps(_plain(result), allow_nan=False)
    except RecursionError:
        raise ResultError("The function returned a value that contains itself: return plain values.") from None
    if len(text) > MAX_RESULT_BYTES:
        raise ResultError(
            f"The function returned {len(text):,} bytes of JSON, and a result may have {MAX_RESULT_BYTES:,}: write the "
            "data to storage and return its path."
        )
    return marker + (text if masker is None else masker.json(text))


def decode_result(text: str | None, job: str) -> Any:
    """Decode the result after the marker in the log of ``job``.

    Raises:
        ResultError: The result is missing or incomplete.
    """
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        raise ResultError(
            f"Ray job {job!r} succeeded, but its log does not end with the result: clear the task to run it again."
        ) from None


def _plain(value: Any) -> Any:
    """Convert ``value`` to JSON's types: dataclasses and pydantic models to objects, dates and paths to texts."""
    if value is None or isinstance(value, (bool, int, str)):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None  # JSON has no NaN, and databases refuse it
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, pathlib.PurePath):
        return str(value)
    return _plain_of_library(value)


def _plain_of_library(value: Any) -> Any:
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")  # pydantic
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _plain(value.item())  # a number of NumPy or JAX
    raise ResultError(
        f"The function returned a {type(value).__qualname__}, which JSON cannot hold: return plain values, or write "
        "the data to storage and return its path."
    )


def _key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return key
    if isinstance(key, (bool, int, float)) or key is None:
        return json.dumps(key)
    if isinstance(key, (datetime.date, pathlib.PurePath)):
        return str(_plain(key))
    raise ResultError(f"The function returned a mapping with a key of type {type(key).__qualname__}: use texts.")


CALL_ENTRYPOINT = "python -u -m tradewind.runtime.run_callable"
CALL_VARIABLE = "TRADEWIND_CALL"
MAX_ENV_VALUE_BYTES = 8 * 1024
_IN_FILE = "file:"
_FILE = "call.json"


@contextmanager
def call_runtime_env(call: Call, runtime_env: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield ``runtime_env`` with ``call`` in it, for a job with the entrypoint ``CALL_ENTRYPOINT``.

    Submit the job inside the block.
    """
    text = call.to_json()
    if len(text) <= MAX_ENV_VALUE_BYTES:
        yield _with_variable(runtime_env, text)
        return
    with tempfile.TemporaryDirectory(prefix="tradewind-call-") as scratch:
        name = f"tradewind_call_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        folder = Path(scratch, name)
        folder.mkdir()
        (folder / _FILE).write_text(text)
        yield _with_module(_with_variable(runtime_env, f"{_IN_FILE}{name}"), folder)


def read_call() -> Call:
    """Read the call that this job brings.

    Raises:
        SpecError: The job brings no call.
    """
    text = os.environ.get(CALL_VARIABLE, "")
    if text.startswith(_IN_FILE):
        files = [Path(folder, text.removeprefix(_IN_FILE), _FILE) for folder in sys.path]
        text = next((file.read_text() for file in files if file.is_file()), "")
    if not text:
        raise SpecError(f"{CALL_VARIABLE} names no call: this program is run by Airflow's Ray tasks.")
    return Call.from_json(text)


def ship_tradewind(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Add this package to ``runtime_env``, for a cluster whose image lacks it or has another version."""
    return _with_module(runtime_env, Path(tradewind.__file__).parent)


def _with_variable(runtime_env: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), CALL_VARIABLE: text}}


def _with_module(runtime_env: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {**runtime_env, "py_modules": [*(runtime_env.get("py_modules") or []), str(folder)]}
