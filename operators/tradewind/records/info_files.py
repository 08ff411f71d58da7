"""Step info and the experiment's file, as E20 writes them.

``.executor_info`` beside an output says what the step is, and its config. Its text is the same in every process: a
function appears by its name, and no object by its address as in E20.

``{prefix}/experiments/{name}-{hash}.json`` says which steps belong together; Marin's data browser reads it. The hash
covers only the steps, so an experiment has one file however often it runs. The file names its first user and time.
"""

from __future__ import annotations

import dataclasses
import datetime
import getpass
import hashlib
import json
import os
import posixpath
import re
import socket
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from tradewind.records.parsing import TEXT, RecordFormatError, list_of, parse_fields, parse_object
from tradewind.steps import Lazy, ResolvedStep
from tradewind.storage.bounded_read import Content
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import create_text, write_text

INFO_FILE = ".executor_info"
_KINDS: Final = {"name": TEXT, "dependencies": list_of(TEXT).or_null()}
EXPERIMENTS_FOLDER: Final = "experiments"
_FILE_NAME: Final = re.compile(r".+-[0-9a-f]{6}\.json")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


class BadInfoError(BadRecordError):
    """The info of a step cannot be read, so the inputs of its output are unknown."""


def step_info(step: ResolvedStep, fn_name: str) -> dict[str, Any]:
    """Return the info of ``step`` in E20's fields and order; ``fn_name`` is the function's ``module.qualname``."""
    return {
        "name": step.name,
        "fn_name": fn_name,
        "config": step.config,
        "override_output_path": step.step.override_output_path,
        "version": step.version,
        "dependencies": [dependency.output_path for dependency in step.dependencies],
        "output_path": step.output_path,
    }


def write_step_info(step: ResolvedStep, fn_name: str) -> None:
    """Write the info of ``step`` beside its output."""
    write_text(posixpath.join(step.output_path, INFO_FILE), info_json(step_info(step, fn_name), indent=2) + "\n")


def parse_info(file: str, content: Content) -> dict[str, Any]:
    """Return the step info in the content of ``file``, after checking its name and dependencies only.

    Marin's step runner omits the dependencies, which are unknown then.

    Raises:
        BadInfoError: The content is not a step info.
    """
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        fields = parse_object(content.text)
        parse_fields(fields, _KINDS, ("name",))
    except RecordFormatError as flaw:
        raise BadInfoError(file, str(flaw)) from None
    return fields


def info_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return the JSON text of infos, for configs of any values."""
    return json.dumps(value, indent=indent, sort_keys=sort_keys, default=_encode)


def _encode(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
    if isinstance(value, Lazy):
        return {"lazy": value.target, **value.kwargs}
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(value) and hasattr(value, "__qualname__") and not isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", str(value))


def write_experiment_info(
    prefix: str,
    name: str,
    infos: Sequence[Mapping[str, Any]],
    caller_path: str,
    git_commit: str | None,
    folder: str | None = None,
) -> str:
    """Write the experiment's file unless it exists, and return its path.

    Args:
        name: The name of the file that defines the experiment, without ``.py``.
        infos: The ``step_info`` of each step.
        caller_path: The file that defines the experiment.
        git_commit: The commit of its code, if there is one.
        folder: The folder of experiments, if not the one below ``prefix``.
    """
    digest = hashlib.md5(info_json(infos, sort_keys=True).encode(), usedforsecurity=False).hexdigest()[:6]
    path = posixpath.join(folder or posixpath.join(prefix, EXPERIMENTS_FOLDER), f"{name}-{digest}.json")
    fields = {
        "worker_id": f"{socket.gethostname()}-{os.getpid()}",
        "git_commit": git_commit,
        "caller_path": caller_path,
        "created_date": datetime.datetime.now().isoformat(),
        "user": _user(),
        "prefix": prefix,
        "steps": infos,
    }
    create_text(path, info_json(fields, indent=2) + "\n")
    return path


def is_experiment_file(name: str) -> bool:
    """Whether a file of this name, in the folder of experiments, is an experiment's file."""
    return _FILE_NAME.fullmatch(name) is not None


def _user() -> str:
    """Return the name of this process's user, or the number: a container may have no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
