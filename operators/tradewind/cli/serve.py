"""``tradewind serve``: serve a model on a cluster, and reach it from this machine.

Each command runs a function of ``tradewind.serving.start_pool`` as a Ray job. ``start`` makes a token, of which the
cluster gets only the SHA-256, opens a tunnel if the cluster is one of the fleet's, and ends the pool at its own end.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from tradewind.cli.in_airflow import enter_airflow
from tradewind.cli.interrupts import Interrupted, Interrupts
from tradewind.cli.jobs.clusters import cluster_label, is_temporary_address, options_for
from tradewind.cli.jobs.submit import check_owner, new_id
from tradewind.cli.output import CommandError, UsageError, as_line, json_lines, say, user_name, write_lines
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.machine import free_port
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import Demand
from tradewind.ray_jobs.details import USER
from tradewind.ray_jobs.errors import RayJobsError, RayUnreachableError
from tradewind.ray_jobs.follow.outcomes import EndingKind, FollowRequest, await_outcome
from tradewind.ray_jobs.request import JobRequest, check_request
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.ray_jobs.worker_python import start_command
from tradewind.serialization.callables import describe_call
from tradewind.serialization.errors import ResultError
from tradewind.serialization.job_start import JobStart, start_env
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.shipping import CALL_ENTRYPOINT, call_runtime_env, decode_result, result_marker
from tradewind.serving import start_pool, weights
from tradewind.serving.config import ServingConfig
from tradewind.steps.paths import HUB_PREFIX
from tradewind.steps.resources import Cpu, Gpu, TpuSlice
from tradewind.storage import Roots, StorageError
from tradewind.text import format_columns, format_duration, pluralize, truncated_repr

_POLL_S: Final = 5.0
_MAX_LOST_POLLS: Final = 6
"""Polls without an answer before the cluster is asked whether the pool exists."""
_REQUEST_TIMEOUT_S: Final = 10.0
_LOST: Final = (OSError, http.client.HTTPException)
_HEADER: Final = ("POOL", "MODEL", "STATE", "ENGINES", "QUEUED", "SERVED", "ENDS IN", "ADDRESS", "PATH")
_POOL: Final = re.compile(r"pool-[0-9a-f]{12}")


def check_usage(name: str, arguments: argparse.Namespace) -> None:
    """Refuse invalid options before connecting to a cluster.

    Raises:
        UsageError: The options describe no pool, or a name is none of a pool.
    """
    if name == "start":
        serving_config(arguments)
    if name == "stop":
        for given in arguments.names:
            if not _POOL.fullmatch(given):
                raise UsageError(f"{truncated_repr(given)} is no pool's name, such as pool-0123456789ab: see 'list'.")


def serving_config(arguments: argparse.Namespace) -> ServingConfig:
    """Return the config of the options.

    Raises:
        UsageError: They make no sense.
    """
    try:
        check_model(arguments.model)
        command = _words(arguments.engine_command or "")
        return ServingConfig(
            arguments.model,
            engine="command" if command else arguments.engine,
            engine_options=dict(arguments.engine_options),
            command=command,
            resources=_resources(arguments),
            replicas=arguments.replicas,
            max_replicas=arguments.max_replicas,
            timeout_s=arguments.timeout,
            idle_timeout_s=arguments.idle_timeout,
            served_name=arguments.name,
            secrets=dict(arguments.secrets),
        )
    except (ValueError, StorageError) as error:
        raise UsageError(str(error)) from None


def check_model(model: str) -> None:
    """Refuse a model that no cluster can find, or that the deployment keeps from it.

    Raises:
        ValueError: A name of the hub has no commit.
        StorageError: A path is relative, of an unknown store, or below no allowed root.
    """
    if model.startswith(HUB_PREFIX):
        weights.check_model(model)
        return
    Roots.of([model], "MODEL")
    if find_spec("airflow") is not None:
        enter_airflow()
        from airflow.sdk import conf

        from tradewind.plans.prefixes import roots_in

        if (roots := roots_in(conf.get("tradewind", "allowed_roots", fallback=None))) is not None:
            roots.check(model, "MODEL")


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--engine-command: {error}.") from None


def _resources(arguments: argparse.Namespace) -> Cpu | Gpu | TpuSlice:
    amounts = {"num_cpus": arguments.num_cpus, "memory_bytes": arguments.memory}
    given = {name: value for name, value in amounts.items() if value is not None}
    if arguments.tpu is not None:
        if given or arguments.num_gpus is not None:
            raise UsageError("--tpu means the whole host: give no --num-cpus, --num-gpus or --memory with it.")
        return TpuSlice(arguments.tpu)
    return Cpu(**given) if arguments.num_gpus is None else Gpu(arguments.num_gpus, **given)


class ClusterCalls:
    """Calls of functions on a cluster, each as a Ray job.

    Args:
        arguments: Of the command.
        cluster: The cluster that they name.
        interrupts: The signals of this process.
        tell: Takes the lines of a job's log.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        cluster: RayCluster,
        interrupts: Interrupts,
        tell: Callable[[Sequence[str]], None],
    ) -> None:
        self._cluster = cluster
        self._interrupts = interrupts
        self._tell = tell
        self.of_fleet = _behind_a_tunnel(arguments, cluster)
        self.was_any_submitted = False

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what ``function`` returns on the cluster; stop its job if the user interrupts.

        Raises:
            CommandError: It failed; its log says why.
            RayJobsError: The cluster refuses the job or does not answer.
        """
        with self._connected() as cluster:
            return self._call(cluster, function, args, kwargs)

    @contextmanager
    def _connected(self) -> Iterator[RayCluster]:
        """Yield the cluster; one of the fleet through a new tunnel, since an earlier one may have died."""
        if self.of_fleet is None:
            yield self._cluster
            return
        from tradewind.fleet.access.connect import connected

        try:
            with connected(self.of_fleet) as cluster:
                yield cluster
        except FleetError as error:
            raise RayUnreachableError(str(error)) from None

    def _call(self, cluster: RayCluster, function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        from tradewind.ray_jobs.client import RayJobs
        from tradewind.ray_jobs.follow.log_lines import JobLog

        user = user_name()
        job = new_id(["-m", f"serve-{function.__name__}"], user, datetime.now(UTC), secrets.token_hex(2))
        call = describe_call(function, args, kwargs, CodeFolder(Path.cwd()), result_marker(job))
        with call_runtime_env(call, {}) as call_env:
            runtime_env = prepare_runtime_env(start_env(call_env, JobStart()))
            metadata = {USER: user} if user else {}
            request = check_request(JobRequest(job, start_command(CALL_ENTRYPOINT), runtime_env, metadata))
            RayJobs(cluster).submit_or_attach(request)
            self.was_any_submitted = True
        watch = FollowRequest(job, Demand.of(request), result_marker=result_marker(job))
        log = JobLog(self._tell, max_bytes=None)
        try:
            outcome = self._interrupts.run(await_outcome(cluster, watch, log, say))
        except Interrupted:
            self._interrupts.run(_stop_job(cluster, job))
            raise
        if outcome.ending.kind is not EndingKind.SUCCEEDED:
            raise CommandError(outcome.ending.sentence)
        try:
            return decode_result(outcome.result, job)
        except ResultError as error:
            raise CommandError(str(error)) from None


async def _stop_job(cluster: RayCluster, job: str) -> None:
    from tradewind.ray_jobs.api import JobsApi
    from tradewind.ray_jobs.follow.stopping import stop_job

    async with JobsApi(cluster) as api:
        await stop_job(api, job, say)


def _behind_a_tunnel(arguments: argparse.Namespace, cluster: RayCluster) -> FleetCluster | None:
    """Return the cluster of the fleet to which this command has made a tunnel, if it has."""
    named = arguments.named
    return named.of_fleet if named is not None and is_temporary_address(named, cluster) else None


def _tell_log(lines: Sequence[str]) -> None:
    print(*map(as_line, lines), sep="\n", file=sys.stderr, flush=True)


def start(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Serve a model until Ctrl-C.

    Raises:
        UsageError: The cluster belongs to another user.
        CommandError: The engines do not start, this machine cannot reach them, or the pool has ended.
        RayJobsError: The cluster refuses the job or does not answer.
    """
    check_owner(arguments.named, user_name())
    serving = Serving(arguments, cluster, ClusterCalls(arguments, cluster, interrupts, _tell_log))
    serving.begin()
    try:
        serving.follow()
    except Interrupted:
        return 0
    finally:
        serving.end()


class Serving:
    """One pool, its token, and the way to it."""

    def __init__(self, arguments: argparse.Namespace, cluster: RayCluster, calls: ClusterCalls) -> None:
        self._config = serving_config(arguments)
        self._named = arguments.named
        self._keep = arguments.keep
        self._port = arguments.port
        self._cluster = cluster
        self._calls = calls
        self._token = secrets.token_urlsafe(32)
        self._digest = hashlib.sha256(self._token.encode()).hexdigest()
        self._was_there = self._has_ended = self._is_outage = False
        self._pool: dict[str, Any] = {}

    def begin(self) -> None:
        """Start the pool, or use the one that is there; end it if the user interrupts this. Raises as ``start``."""
        say(f"{cluster_label(self._cluster)} is to serve {self._config.name_in_api}.")
        try:
            self._pool = self._calls.call(start_pool.start, self._config.to_json(), self._digest)
        except Interrupted:
            if self._calls.was_any_submitted:
                self._stop_unused()
            raise
        self._was_there = not self._pool["started"]

    @property
    def _name(self) -> str:
        return str(self._pool["name"])

    def follow(self) -> NoReturn:
        """Print how to use the pool, and poll it until an exception ends this; outages do not. Raises as ``start``."""
        shown = ""
        while True:
            try:
                with self._reachable(self._pool["address"]) as address:
                    if not shown:
                        self._check(address)
                    if address != shown:
                        self._show(address)
                        shown = address
                    self._poll(address)
            except FleetError as error:
                if not shown:
                    raise CommandError(str(error)) from None
                self._tell_outage(error)
            self._renew()

    def end(self) -> None:
        """End the pool, unless it is to continue."""
        if self._has_ended:
            return
        if self._keep or self._was_there:
            why = "as --keep says" if self._keep else "as it was there before this command"
            say(f"Pool {self._name} continues to its time limits, {why}. To end it: {self._stop_words()}")
        else:
            self._stop()

    def _stop_unused(self) -> None:
        say("Ending the pool.")
        try:
            self._calls.call(start_pool.end_unused, self._config.to_json())
        except (CommandError, RayJobsError):
            say("The pool may continue to its time limits. 'tradewind serve list' shows it.")

    def _stop(self) -> None:
        say(f"Ending pool {self._name}.")
        try:
            self._calls.call(start_pool.stop, [self._name])
        except (CommandError, RayJobsError, Interrupted) as error:
            say(f"Pool {self._name} may continue to its time limits. To end it: {self._stop_words()}")
            if isinstance(error, Interrupted):
                raise

    def _stop_words(self) -> str:
        return shlex.join(["tradewind", "serve", "stop", *options_for(self._named, self._cluster), self._name])

    @contextmanager
    def _reachable(self, address: str) -> Iterator[str]:
        """Yield the address at which this machine reaches the pool: through a tunnel to a cluster of the fleet."""
        of_fleet = self._calls.of_fleet
        if of_fleet is None:
            yield address
            return
        from tradewind.fleet.access.connect import tunnel
        from tradewind.fleet.access.ssh import find_ssh_head
        from tradewind.fleet.cloud.google_api import google_api

        self._port = self._port or free_port()
        there, head = urlsplit(address), find_ssh_head(of_fleet, google_api("compute"))
        with tunnel(head, self._port, to=there.netloc) as here:
            yield f"{here}{there.path}"

    def _check(self, address: str) -> None:
        try:
            self._status(address, "/health")
        except _LOST as error:
            raise CommandError(
                f"Pool {self._name} serves at {address}, which this machine does not reach "
                f"({error or type(error).__name__}): run this where the cluster's network is, or name a cluster of the "
                "fleet with --cluster, to which this command makes a tunnel."
            ) from None

    def _status(self, address: str, path: str) -> int:
        """Return the HTTP status of a path of the pool; ``/health`` is answered at once, whatever waits."""
        parts = urlsplit(address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_REQUEST_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
            return connection.getresponse().status
        finally:
            connection.close()

    def _show(self, address: str) -> None:
        left = max(0.0, self._pool["ends_at"] - time.time())
        engines = pluralize(len(self._pool["engines"]), "engine")
        say(f"Pool {self._name} serves {self._pool['model']} with {engines} for {format_duration(left)}, or to Ctrl-C.")
        body = json.dumps({"model": self._pool["model"], "prompt": "Once upon a time", "max_tokens": 16})
        write_lines([
            f"export OPENAI_BASE_URL={shlex.quote(address)}",
            f"export OPENAI_API_KEY={self._token}",
            'curl "$OPENAI_BASE_URL/completions" -H "Authorization: Bearer $OPENAI_API_KEY" '
            f"-H 'Content-Type: application/json' -d {shlex.quote(body)}",
        ])  # fmt: skip

    def _poll(self, address: str) -> None:
        """Return once the pool has not answered for a while, or refuses the token."""
        lost = 0
        while lost < _MAX_LOST_POLLS:
            time.sleep(_POLL_S)
            try:
                if self._is_refused(address):  # the cluster's head has restarted
                    return
                lost = 0
            except _LOST:
                lost += 1

    def _is_refused(self, address: str) -> bool:
        """Whether the pool refuses the token. The question is a request, so the pool is not idle."""
        try:
            return self._status(address, "/v1/models") == http.HTTPStatus.UNAUTHORIZED
        except TimeoutError:  # it waits behind the requests of others
            self._status(address, "/health")
            return False

    def _renew(self) -> None:
        """Join the pool again if the cluster still has it; say so while the cluster does not answer.

        Raises:
            CommandError: The pool has ended.
        """
        try:
            is_there = any(pool["name"] == self._name for pool in self._calls.call(start_pool.pools))
            if is_there:
                self._pool = self._calls.call(start_pool.admit, self._name, self._digest)
        except (CommandError, RayJobsError) as error:
            self._tell_outage(error)
            return
        self._is_outage = False
        if not is_there:
            self._has_ended = True
            raise CommandError(f"Pool {self._name} has ended: its time is over, or another user has ended it.")

    def _tell_outage(self, error: Exception) -> None:
        if not self._is_outage:
            say(f"{error} Retrying every {_POLL_S:g} s.")
        self._is_outage = True
        time.sleep(_POLL_S)


def list_pools(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """Print the pools of a cluster. Raises as ``start`` does."""
    found = ClusterCalls(arguments, cluster, interrupts, lambda lines: None).call(start_pool.pools)
    write_lines(json_lines(found) if arguments.json else pool_table(found, time.time()))
    return 0


def pool_table(pools: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    """Format the pools in columns with a header."""
    return format_columns([_HEADER, *(_row(pool, now) for pool in pools)])


def _row(pool: Mapping[str, Any], now: float) -> tuple[str, ...]:
    engines = pool["engines"]
    ready = sum(engine["state"] == "ready" for engine in engines)
    left = format_duration(max(0.0, pool["ends_at"] - now))
    counts = f"{ready} of {len(engines)}", str(pool["queued"]), str(pool["served"])
    return pool["name"], pool["model"], pool["state"], *counts, left, pool["address"], pool["path"]


def stop(arguments: argparse.Namespace, cluster: RayCluster, interrupts: Interrupts) -> int:
    """End pools; return 1 if the cluster has not all of them. Raises as ``start`` does."""
    names = list(dict.fromkeys(arguments.names))
    results = ClusterCalls(arguments, cluster, interrupts, lambda lines: None).call(start_pool.stop, names)
    write_lines([f"{name}: {results[name]}" for name in names])
    return 1 if "absent" in results.values() else 0


WORKS: Final = {"start": start, "list": list_pools, "stop": stop}
