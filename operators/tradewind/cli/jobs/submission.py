"""From the options of ``submit`` to the job, checked before anything is sent."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from tradewind.calls.shipping import ship_tradewind
from tradewind.cli.errors import UsageError
from tradewind.cli.jobs.env import SETTINGS_FILE, job_env
from tradewind.ray_jobs.checks import LONGEST_ID, check_request
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.environment.groups import environment_of
from tradewind.ray_jobs.environment.runtime_env import prepared
from tradewind.ray_jobs.keeping.owners import USER
from tradewind.ray_jobs.request import JobRequest
from tradewind.runtime.with_secrets import with_secrets
from tradewind.steps import TpuSlice
from tradewind.tasks.jobs.placement import Placement, placed_job

_LONGEST_PART = 40
_ASSIGNMENT = re.compile(r"\w+=")


def job_to_submit(arguments: argparse.Namespace, job: str, here: Path, say: Callable[[str], None]) -> JobRequest:
    """The job that the command line describes, under the id ``job``; ``here`` is where the command was given.

    Raises:
        UsageError: An option makes no sense.
        CommandError: A file that was to be read cannot be.
        BadRequestError: Something in the job is known to be wrong.
        UnknownSliceTypeError: There is no such slice type.
        SecretReferenceError: A secret is given as something other than a reference.
    """
    command = shlex.join(command_words(arguments.command))
    folder = Path(here, arguments.working_dir)
    references = dict(arguments.secret)
    env = job_env(arguments.env, references, folder, here / SETTINGS_FILE, say)
    entrypoint, secret_env = with_secrets(command, references, f"Job {job!r}")
    extras = [part.strip() for text in arguments.extra for part in text.split(",") if part.strip()]
    runtime_env: dict[str, Any] = {
        "working_dir": str(folder),
        "excludes": arguments.exclude,
        "env_vars": {**env, **secret_env},
        **environment_of(extras, folder),
    }
    if references:
        runtime_env = ship_tradewind(runtime_env)
    user = {USER: name} if (name := _user()) else {}
    metadata = {**user, **dict(arguments.metadata)}
    request = JobRequest(job, entrypoint, prepared(runtime_env), metadata, **place(arguments).fields())
    return check_request(request)


def command_words(words: Sequence[str]) -> list[str]:
    """The command behind ``--``.

    Raises:
        UsageError: There is none, or it is not behind ``--``.
    """
    if not words or words[0] != "--":
        raise UsageError("write '--' between the options and the command: tradewind jobs submit -- python train.py")
    if len(words) == 1:
        raise UsageError("there is no command behind '--'.")
    return list(words[1:])


def new_id(words: Sequence[str], user: str, now: datetime, nonce: str) -> str:
    """An id that says whose job it is, what it runs and since when; ``nonce`` tells apart those of one second."""
    parts = [_slug(user) or "user", _slug(script_stem(words)) or "job"]
    return "-".join([*parts, now.astimezone(UTC).strftime("%Y%m%d-%H%M%S"), nonce])[-LONGEST_ID:]


def script_stem(words: Sequence[str]) -> str:
    """What a command runs, in one word: its script, its module, or its program."""
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    if scripts:
        return PurePath(scripts[0]).stem
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1].rpartition(".")[2]
    programs = [word for word in words if not _ASSIGNMENT.match(word)]
    return PurePath(programs[0]).stem if programs else ""


def id_for(arguments: argparse.Namespace) -> str:
    """The id that was asked for, or a new one."""
    if arguments.submission_id is not None:
        return str(arguments.submission_id)
    return new_id(arguments.command[1:], _user(), datetime.now(UTC), secrets.token_hex(2))


def place(arguments: argparse.Namespace) -> Placement:
    """Where the command runs: on the slice, with the amounts on top.

    Raises:
        UsageError: ``--resources`` is no JSON, or names what another option says.
    """
    resources = _resources(arguments.resources)
    slice_ = placed_job(TpuSlice(arguments.tpu)) if arguments.tpu else Placement()
    if twice := sorted(resources.keys() & (slice_.resources or {}).keys()):
        raise UsageError(f"--resources and --tpu both ask for {twice[0]}: leave it to --tpu.")
    return Placement(
        arguments.num_cpus,
        arguments.num_gpus,
        arguments.memory,
        {**resources, **(slice_.resources or {})} or None,
        slice_.label_selector,
    )


def ray_command(request: JobRequest, cluster: RayCluster) -> str:
    """What would submit the same job with Ray's own command line; nothing in it is secret."""
    runtime_env = {name: value for name, value in request.runtime_env.items() if name != "working_dir"}
    options = {
        "--address": cluster.address,
        "--submission-id": request.submission_id,
        "--working-dir": request.runtime_env.get("working_dir"),
        "--runtime-env-json": _json(runtime_env),
        "--metadata-json": _json(request.metadata),
        "--entrypoint-num-cpus": request.num_cpus,
        "--entrypoint-num-gpus": request.num_gpus,
        "--entrypoint-memory": request.memory_bytes,
        "--entrypoint-resources": _json(request.resources),
        "--entrypoint-label-selector": _json(request.label_selector),
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return f"ray job submit {shlex.join(words)} -- {request.entrypoint}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""


def _json(value: Mapping[str, Any] | None) -> str | None:
    return json.dumps(value) if value else None


def _resources(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("--resources is no JSON object: write such as '{\"big_disk\": 1}'.")
    return found


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-_")[:_LONGEST_PART]
