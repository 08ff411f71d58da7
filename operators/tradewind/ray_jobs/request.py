"""A job to submit, and checks that refuse known mistakes before anything is sent to a cluster.

The checks are pure. ``runtime_env`` checks files on disk.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from tradewind.cloud_tpu.slice_types import POD_TYPE_LABEL, SLICE_NAME_LABEL, is_head_resource
from tradewind.ray_jobs.errors import BadRequestError, ExposedSecretError
from tradewind.ray_jobs.runtime_env import MAX_ARGUMENT_BYTES, check_fields, why_no_text
from tradewind.ray_jobs.secret_patterns import (
    detect_secret,
    redacted_name,
    secret_assignment,
    secret_field,
    secret_variable,
    texts_in,
)


@dataclass(frozen=True)
class JobRequest:
    """A job to submit under a given ID; fields are those of Ray's Jobs API."""

    submission_id: str
    entrypoint: str
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_bytes: int | None = None
    resources: Mapping[str, float] | None = None
    label_selector: Mapping[str, str] | None = None


MAX_ID_CHARS: Final = 128
_MAX_AMOUNT: Final = 2**63 - 1
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_JINJA: Final = (("{{", "}}"), ("{%", "%}"))
_OWN_FIELDS: Final = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory_bytes"}
_WORDS: Final = (str, int, float, Decimal, PurePath, date, UUID)
"""Types of a command's items; each becomes its text."""
_QUOTED_QUOTES: Final = ("'\"'\"'", "'\\''")
"""A quotation mark inside a shell's quoted text, as shlex or users write it; it would hide a secret there."""
_TPU: Final = "TPU"
_SLICE_LABELS: Final = (POD_TYPE_LABEL, SLICE_NAME_LABEL)


def check_request(request: JobRequest) -> JobRequest:
    """Return the request if it is valid.

    Raises:
        BadRequestError: The first mistake; a subclass names its kind.
    """
    check_submission_id(request.submission_id)
    check_entrypoint(request.entrypoint)
    check_amounts(request)
    check_metadata(request.metadata)
    check_tpu(request.resources or {}, request.label_selector or {})
    check_fields(request.runtime_env)
    check_env_vars(request.runtime_env.get("env_vars") or {})
    check_no_secret(request.runtime_env, "runtime_env")
    return request


def check_submission_id(submission_id: str) -> None:
    """Accept at most 128 letters, digits, ``-``, ``_`` and ``.``, beginning with a letter or digit.

    Ray accepts other IDs and then cannot find them: ``#`` and ``?`` end the path of a URL, ``%`` is decoded in it,
    ``/`` and more than 239 characters do not fit the name of a log file, ``..`` is another path.
    """
    if not isinstance(submission_id, str) or not submission_id:
        raise BadRequestError("The submission id is empty or no text: give one, or none to get a new one.")
    if len(submission_id) > MAX_ID_CHARS:
        raise BadRequestError(
            f"The submission id has {len(submission_id)} characters: at most {MAX_ID_CHARS} fit into Ray's log files."
        )
    if not _ID.fullmatch(submission_id):
        raise BadRequestError(
            "The submission id (not shown, as it may hold a secret) would not be found again in Ray's URLs: use "
            "letters, digits, '-', '_' and '.', beginning with a letter or digit."
        )


def shell_command(entrypoint: Any) -> str:
    """Return the checked shell command of an entrypoint: a text, or a list of a program and its arguments.

    Raises:
        BadRequestError: It is no command, or an item has no text; the values stay hidden.
    """
    if isinstance(entrypoint, Sequence) and not isinstance(entrypoint, (str, bytes)):
        for number, item in enumerate(entrypoint, 1):
            if not isinstance(item, _WORDS):
                found = "None" if item is None else f"a {type(item).__name__}"
                raise BadRequestError(
                    f"Item {number} of the entrypoint is {found}: give a text or a number. An XCom is None if its task "
                    "returned nothing or did not run."
                )
        words = [str(item) for item in entrypoint]
        if words and not words[0].strip():
            raise BadRequestError("Item 1 of the entrypoint is empty: it must be the program to run.")
        entrypoint = shlex.join(words)
    check_entrypoint(entrypoint)
    return str(entrypoint)


def check_entrypoint(entrypoint: str) -> None:
    """Require a fully rendered command without secrets."""
    if not isinstance(entrypoint, str):
        raise BadRequestError(
            f"The entrypoint is a {type(entrypoint).__name__}: give the shell command as one text, such as "
            "'python train.py', or as a list, such as ['python', 'train.py']."
        )
    if not entrypoint.strip():
        raise BadRequestError(
            "The entrypoint is empty: give a shell command, or correct the template that rendered to nothing."
        )
    if why := why_no_text(entrypoint):
        raise BadRequestError(f"The entrypoint {why}, which no command can: remove it.")
    if len(entrypoint) >= MAX_ARGUMENT_BYTES:
        raise BadRequestError(
            f"The entrypoint has {len(entrypoint):,} characters, and no shell takes as many: put it into a script."
        )
    starts = [
        entrypoint.find(begin) for begin, end in _JINJA if 0 <= entrypoint.find(begin) < entrypoint.rfind(end) - 1
    ]
    if starts:
        raise BadRequestError(
            f"The entrypoint still holds a Jinja expression at character {min(starts) + 1} (not shown, as it may hold "
            "a secret): it was not rendered, because its field is not templated or it was itself the result of a "
            "template."
        )
    for quote in _QUOTED_QUOTES:
        entrypoint = entrypoint.replace(quote, "'")
    _check_text(entrypoint, "The entrypoint")


def check_amounts(request: JobRequest) -> None:
    """Require amounts that a node could have."""
    for name, each_field in _OWN_FIELDS.items():
        if name in (request.resources or {}):
            raise BadRequestError(f"resources holds {name!r}, which has a field of its own: use {each_field}.")
    amounts: dict[str, Any] = {
        "num_cpus": request.num_cpus,
        "num_gpus": request.num_gpus,
        "memory_bytes": request.memory_bytes,
        **{f"resources[{redacted_name(name)}]": amount for name, amount in (request.resources or {}).items()},
    }
    for where, amount in amounts.items():
        if amount is None:
            continue
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise BadRequestError(f"{where} is a {type(amount).__name__}: give a number.")
        if not 0 <= amount <= _MAX_AMOUNT:  # NaN fails both comparisons
            shown = amount if isinstance(amount, float) else f"a whole number of {amount.bit_length()} bits"
            raise BadRequestError(
                f"{where} is {shown}: give a finite number that is not below zero and fits into 64 bits."
            )
    if isinstance(request.memory_bytes, float):
        raise BadRequestError(f"memory_bytes is {request.memory_bytes!r}: give a whole number of bytes.")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Require text for text, as Ray does, without secrets: any client can read metadata."""
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise BadRequestError(f"A metadata key is a {type(key).__name__}: Ray takes only text.")
        check_no_known_secret(key, "A metadata key")
        if not isinstance(value, str):
            raise BadRequestError(
                f"The metadata value of {redacted_name(key)} is a {type(value).__name__}: Ray takes only text, so "
                "write str(...)."
            )
        if why := why_no_text(key) or why_no_text(value):
            raise BadRequestError(f"The metadata entry {redacted_name(key)} {why}: remove it.")
        check_no_known_secret(value, f"The metadata value of {key!r}")
        if (why := secret_field(key, value, shortest=1)) is not None:
            raise ExposedSecretError(
                f"The metadata value of {key!r} looks like a secret ({why}), and metadata can be read by every user "
                f"who may list the cluster's jobs: remove it, and {_instead('NAME')}"
            )


def check_tpu(resources: Mapping[str, float], label_selector: Mapping[str, str]) -> None:
    """Require the labels of a slice whenever chips are requested."""
    if not resources.get(_TPU):
        return
    has_head = any(is_head_resource(name) and amount for name, amount in resources.items())
    names_slice = any(
        str(label_selector.get(label, "!")).strip() and not str(label_selector.get(label, "!")).strip().startswith("!")
        for label in _SLICE_LABELS
    )
    if not has_head and not names_slice:
        raise BadRequestError(
            f"resources={{'TPU': {resources[_TPU]:g}}} names no slice, so it could take chips of a slice that is in "
            "use: ask for TpuSlice('v4-8') or another slice type, which adds 'TPU-v4-8-head' and the label "
            f"{_SLICE_LABELS[0]!r}."
        )


def check_env_vars(env_vars: Mapping[str, str]) -> None:
    """Refuse variables that look like secrets."""
    for number, (name, value) in enumerate(env_vars.items(), 1):
        check_no_known_secret(str(name), f"The name of environment variable {number}")
        why = secret_variable(str(name), str(value))
        if why is not None:
            raise ExposedSecretError(
                f"The environment variable {name!r} looks like a secret ({why}), and a runtime_env can be read by "
                f"every user who may list the cluster's jobs: {_instead(str(name))}"
            )


def check_no_known_secret(value: Any, where: str) -> None:
    """Refuse text in ``value`` that has the form of a known kind of secret."""
    for where_in, text in texts_in(value, where):
        form = detect_secret(text)
        if form is not None:
            raise ExposedSecretError(
                f"{where_in} holds text with the form of {form}, and can be read by every user who may list the "
                f"cluster's jobs: remove it, and {_instead('NAME')}"
            )


def check_no_secret(value: Any, where: str) -> None:
    """Refuse text in ``value`` that has the form of a secret, or sets one as commands and URLs do.

    Variables in ``env_vars`` are left to ``check_env_vars``.
    """
    check_no_known_secret(value, where)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "env_vars":
                check_no_secret(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            check_no_secret(inner, f"{where}[{number}]")
        _check_text(" ".join(item for item in value if isinstance(item, str)), where)
    elif isinstance(value, str):
        _check_text(value, where)


def _check_text(text: str, where: str) -> None:
    check_no_known_secret(text, where)
    name = secret_assignment(text)
    if name is not None:
        raise ExposedSecretError(
            f"{where} sets {name}, which looks like a secret; it can be read by every user who may list the cluster's "
            f"jobs: {_instead(_variable(name))}"
        )


def _variable(name: str) -> str:
    """Return the name of an environment variable for a secret with this name."""
    plain = name.strip("-").replace("-", "_").replace(".", "_").upper()
    return plain if plain.isidentifier() and len(plain) > 1 else "NAME"


def _instead(name: str) -> str:
    return (
        f"give secrets={{{name!r}: 'projects/PROJECT/secrets/SECRET'}} (Secret Manager) or "
        f"secrets={{{name!r}: 'env:VARIABLE'}} (a variable of the cluster's own) instead; it is fetched on the cluster."
    )
