"""``tradewind jobs submit``: check the options, submit the job, and follow it.

The job continues when the command ends, unless ``--auto-stop`` was given.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from tradewind.cli.interrupts import Interrupted, Interrupts
from tradewind.cli.jobs.clusters import NamedCluster, is_temporary_address, options_for
from tradewind.cli.jobs.env import SETTINGS_FILE, job_env
from tradewind.cli.output import CommandError, UsageError, say, user_name, write_lines
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import Demand
from tradewind.ray_jobs.dependencies import environment_of
from tradewind.ray_jobs.details import USER
from tradewind.ray_jobs.errors import RayJobRefusedError, RayUnreachableError
from tradewind.ray_jobs.follow.outcomes import EndingKind, FollowRequest, await_outcome
from tradewind.ray_jobs.request import MAX_ID_CHARS, JobRequest, check_request
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.ray_jobs.worker_python import start_command
from tradewind.records.parsing import parse
from tradewind.runtime.with_secrets import with_secrets
from tradewind.serialization.job_start import JobStart, start_env
from tradewind.steps import TpuSlice
from tradewind.tasks.jobs.placement import Placement, place_entrypoint
from tradewind.timeouts import within

STOPPING_S = 600.0
"""How long ``--auto-stop`` waits for the job's end, so that a lost cluster does not block the command."""
_MAX_PART_CHARS = 40
_ASSIGNMENT = re.compile(r"\w+=")


def job_to_submit(arguments: argparse.Namespace, job: str, here: Path, say: Callable[[str], None]) -> JobRequest:
    """Make the job of the command line, with the id ``job``; ``here`` is the current folder.

    Raises:
        UsageError: An option makes no sense.
        CommandError: A file cannot be read.
        BadRequestError: The job is invalid.
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
        entrypoint, runtime_env = start_command(entrypoint), start_env(runtime_env, JobStart())
    user = {USER: name} if (name := user_name()) else {}
    metadata = {**user, **dict(arguments.metadata)}
    request = JobRequest(job, entrypoint, prepare_runtime_env(runtime_env), metadata, **place(arguments).fields())
    return check_request(request)


def command_words(words: Sequence[str]) -> list[str]:
    """Return the command after ``--``.

    Raises:
        UsageError: There is none, or it is not after ``--``.
    """
    if not words or words[0] != "--":
        raise UsageError("write '--' between the options and the command: tradewind jobs submit -- python train.py")
    if len(words) == 1:
        raise UsageError("there is no command after '--'.")
    return list(words[1:])


def new_id(words: Sequence[str], user: str, now: datetime, nonce: str) -> str:
    """Make an id of user, script and time; ``nonce`` distinguishes jobs of the same second."""
    parts = [_slug(user) or "user", _slug(script_stem(words)) or "job"]
    return "-".join([*parts, now.astimezone(UTC).strftime("%Y%m%d-%H%M%S"), nonce])[-MAX_ID_CHARS:]


def script_stem(words: Sequence[str]) -> str:
    """Name what a command runs in one word: its script, its module, or its program."""
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    if scripts:
        return PurePath(scripts[0]).stem
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1].rpartition(".")[2]
    programs = [word for word in words if not _ASSIGNMENT.match(word)]
    return PurePath(programs[0]).stem if programs else ""


def id_for(arguments: argparse.Namespace) -> str:
    """Return the given id, or a new one."""
    if arguments.submission_id is not None:
        return str(arguments.submission_id)
    return new_id(arguments.command[1:], user_name(), datetime.now(UTC), secrets.token_hex(2))


def place(arguments: argparse.Namespace) -> Placement:
    """Return the command's placement: the slice, and the amounts in addition.

    Raises:
        UsageError: ``--resources`` is no JSON, or names a resource of another option.
    """
    resources = _resources(arguments.resources)
    slice_ = place_entrypoint(TpuSlice(arguments.tpu)) if arguments.tpu else Placement()
    if twice := sorted(resources.keys() & (slice_.resources or {}).keys()):
        raise UsageError(f"--resources and --tpu both request {twice[0]}: leave it to --tpu.")
    return Placement(
        arguments.num_cpus,
        arguments.num_gpus,
        arguments.memory,
        {**resources, **(slice_.resources or {})} or None,
        slice_.label_selector,
    )


def ray_command(request: JobRequest, cluster: RayCluster) -> str:
    """Return the command that submits the same job with Ray's own command line; it holds no secrets."""
    from tradewind.ray_jobs.client import unexpanded_env

    runtime_env = unexpanded_env({name: value for name, value in request.runtime_env.items() if name != "working_dir"})
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


def _json(value: Mapping[str, Any] | None) -> str | None:
    return json.dumps(value) if value else None


def _resources(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    try:
        found = parse(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("--resources is not a JSON object like '{\"big_disk\": 1}'.")
    return found


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-_")[:_MAX_PART_CHARS]


def check_usage(arguments: argparse.Namespace) -> None:
    """Refuse invalid options before connecting to a cluster.

    Raises:
        UsageError: The options do not go together, or there is no command after ``--``.
    """
    command_words(arguments.command)
    if arguments.no_wait and (arguments.auto_stop or arguments.timeout):
        option = "--auto-stop" if arguments.auto_stop else "--timeout"
        raise UsageError(
            f"--no-wait and {option} exclude each other: with --no-wait, no command is left to stop the job."
        )


def submit(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Submit the job and follow it; return 0 if it succeeded.

    Raises:
        UsageError: The job or the cluster belongs to another user.
        CommandError: A required file, token or cluster is not available.
        RayJobsError: The job is invalid, or the cluster refuses it or does not answer.
    """
    request = job_to_submit(arguments, id_for(arguments), Path.cwd(), say)
    check_owner(arguments.named, request.metadata.get("user", ""))
    submission = Submission(
        request,
        cluster,
        interrupts,
        options_for(arguments.named, cluster),
        is_id_new=arguments.submission_id is None,
        is_temporary=is_temporary_address(arguments.named, cluster),
    )
    return submission.run(no_wait=arguments.no_wait, auto_stop=arguments.auto_stop, timeout_s=arguments.timeout)


def check_owner(named: NamedCluster | None, user: str) -> None:
    """Refuse a cluster of the fleet that belongs to another user."""
    cluster = named.of_fleet if named else None
    if cluster is not None and cluster.owner not in (None, user):
        raise UsageError(f"{cluster.not_for(user or 'a user without a name')} Name another cluster with --cluster.")


class Submission:
    """Submission of one job.

    Args:
        where: The options for the cluster on another command line.
        is_id_new: The id is generated: a job with it is this command's.
        is_temporary: Only this command can use the cluster's address, so it is not shown.
    """

    def __init__(
        self,
        request: JobRequest,
        cluster: RayCluster,
        interrupts: Interrupts,
        where: Sequence[str],
        *,
        is_id_new: bool,
        is_temporary: bool = False,
    ) -> None:
        self._request = request
        self._job = request.submission_id
        self._cluster = cluster
        self._interrupts = interrupts
        self._where = where
        self._is_own = is_id_new
        self._is_temporary = is_temporary
        self._is_submitted = False
        self._has_ended = False

    def run(self, *, no_wait: bool, auto_stop: bool, timeout_s: float | None) -> int:
        """Submit the job, and follow it unless ``no_wait``; return the exit code."""
        from tradewind.ray_jobs.client import RayJobs

        jobs = RayJobs(self._cluster)
        if not self._is_temporary:
            say(f"The same with Ray's own command: {ray_command(self._request, self._cluster)}")
        with self._stopping() if auto_stop else self._leaving():
            try:
                is_new = jobs.submit_or_attach(self._request)
            except RayJobRefusedError:
                self._has_ended = True
                raise
            except RayUnreachableError as error:
                raise RayUnreachableError(f"{error} Job {self._job} may have been submitted nevertheless.") from None
            self._is_own, self._is_submitted = self._is_own or is_new, True
            verb = "submitted" if is_new else "was submitted before"
            where = f" on {self._cluster.name}." if self._is_temporary else f": {self._cluster.job_url(self._job)}"
            say(f"Job {self._job} {verb}{where}")
            if no_wait:
                write_lines([self._job])
                self._has_ended = True
                return 0
            return self._follow(timeout_s)

    def _follow(self, timeout_s: float | None) -> int:
        from tradewind.ray_jobs.follow.log_lines import JobLog

        deadline = None if timeout_s is None else time.time() + timeout_s
        watch = FollowRequest(self._job, Demand.of(self._request), deadline=deadline)
        log = JobLog(write_lines, max_bytes=None)
        notices: list[str] = []

        def notice(sentence: str) -> None:
            notices.append(sentence)
            say(sentence)

        outcome = self._interrupts.run(await_outcome(self._cluster, watch, log, notice))
        self._has_ended = True
        if outcome.ending.sentence not in notices:
            say(outcome.ending.sentence)
        return 0 if outcome.ending.kind is EndingKind.SUCCEEDED else 1

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """On an interrupt, tell the user that the job continues, or may not have been submitted yet."""
        try:
            yield
        except Interrupted:
            state = "continues" if self._is_submitted else "may not have been submitted yet"
            say(
                f"Job {self._job} {state}. Follow it with '{self._command('logs -f')}', stop it with "
                f"'{self._command('stop')}'."
            )
            raise

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """End the job when the block ends, also by an error."""
        try:
            yield
        finally:
            if not self._has_ended and self._is_own:
                self._stop()
            elif not self._has_ended:
                say(f"Job {self._job} was submitted by another command, so it continues.")

    def _stop(self) -> None:
        say(f"Stopping job {self._job}.")
        try:
            status = self._interrupts.run(self._stop_and_wait())
        except (TimeoutError, Interrupted) as error:
            say(f"Job {self._job} was asked to stop, but may still run: '{self._command('stop')}' waits for its end.")
            if isinstance(error, Interrupted):
                raise
            raise CommandError(f"Job {self._job} did not stop within {STOPPING_S:.0f} s.") from None
        if status is not None:
            say(f"Job {self._job} is {status}.")

    async def _stop_and_wait(self) -> str | None:
        from tradewind.ray_jobs.api import JobsApi
        from tradewind.ray_jobs.follow.stopping import stop_job

        async with within(STOPPING_S), JobsApi(self._cluster) as api:
            details = await stop_job(api, self._job, say)
        return details.status if details is not None else None

    def _command(self, what: str) -> str:
        return shlex.join(["tradewind", "jobs", *what.split(), *self._where, self._job])
