"""The step info: what a step is and was given, in ``.executor_info`` beside its output, as E20 writes it.

The text is the same in every process: a function appears by its name, and no object by its address as in E20.
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
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class BadInfoError(BadRecordError):
    """The info of a step cannot be read, so what its output was made from is not known."""


def step_info(step: ResolvedStep, fn_name: str) -> dict[str, Any]:
    """The info of ``step``, in E20's fields and order; ``fn_name`` is the function's ``module.qualname``."""
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
    """Put the info of ``step`` beside its output."""
    write_text(posixpath.join(step.output_path, INFO_FILE), info_json(step_info(step, fn_name), indent=2) + "\n")


def parse_info(file: str, found: Content) -> dict[str, Any]:
    """The step info in what was found at ``file``: its name and what the step reads are of the right kinds.

    The rest is as it is there. Marin's step runner leaves out what a step reads, which is not known then.

    Raises:
        BadInfoError: It is none.
    """
    try:
        if found.flaw is not None:
            raise RecordFormatError(found.flaw)
        fields = parse_object(found.text)
        parse_fields(fields, _KINDS, ("name",))
    except RecordFormatError as flaw:
        raise BadInfoError(file, str(flaw)) from None
    return fields


def info_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """The JSON text of infos, whatever the configs in them hold."""
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


# The experiment's file: which steps belong together, in ``{prefix}/experiments/{name}-{hash}.json`` as E20 writes it.
#
# The hash covers the steps and nothing else, so an experiment has one file however often it runs; the file says who ran
# it first and when. Marin's data browser reads it.

EXPERIMENTS_FOLDER: Final = "experiments"
_FILE_NAME: Final = re.compile(r".+-[0-9a-f]{6}\.json")


def write_experiment_info(
    prefix: str,
    name: str,
    infos: Sequence[Mapping[str, Any]],
    caller_path: str,
    git_commit: str | None,
    folder: str | None = None,
) -> str:
    """Put the experiment's file into its folder unless it is there; its path.

    Args:
        name: The name of the file that defines the experiment, without ``.py``.
        infos: What ``step_info`` says of each step.
        caller_path: The file that defines the experiment.
        git_commit: The commit of its code, where there is one.
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
    """Whether a file of this name, in the folder of experiments, is one."""
    return _FILE_NAME.fullmatch(name) is not None


def _user() -> str:
    """Who runs this; a container may have no name for its user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
