"""The step info: what a step is and was given, in ``.executor_info`` beside its output, as E20 writes it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import posixpath
from enum import Enum
from typing import Any

from tradewind.records.store import write_text
from tradewind.steps import Lazy, RemoteFunction, ResolvedStep

INFO_FILE = ".executor_info"


def step_info(step: ResolvedStep) -> dict[str, Any]:
    """The info of ``step``, in E20's fields and order; ``fn_name`` is ``module.qualname``."""
    return {
        "name": step.name,
        "fn_name": function_name(step.step.fn),
        "config": step.config,
        "override_output_path": step.step.override_output_path,
        "version": step.version,
        "dependencies": [dependency.output_path for dependency in step.dependencies],
        "output_path": step.output_path,
    }


def write_step_info(step: ResolvedStep) -> None:
    """Put the info of ``step`` beside its output."""
    text = json.dumps(step_info(step), indent=2, default=_encode) + "\n"
    write_text(posixpath.join(step.output_path, INFO_FILE), text)


def function_name(function: Any) -> str:
    """``module.qualname`` of a step's function; ``"None"`` for a step without one."""
    if isinstance(function, RemoteFunction):
        function = function.function
    if function is None:
        return "None"
    return f"{function.__module__}.{function.__qualname__}"


def _encode(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
    if isinstance(value, Lazy):
        return {"lazy": value.target, **value.kwargs}
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return str(value)
