"""Push the variables of a cluster's environment to its hosts while Ray runs, in the same versions to all.

A running process keeps its environment, so each host reports the variables that its Ray has with other values. The
token is not one of these variables: with another token, Ray would refuse new jobs (see ``lifecycle.rotation``).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.host_files import ENVIRONMENT_FOLDER
from tradewind.fleet.access.hosts import ClusterHosts, SliceOfHosts
from tradewind.fleet.access.ssh import HostResult, HostRuns, RunEnv, SshHost, remote_command
from tradewind.fleet.cloud.heads import NoHeadError
from tradewind.fleet.cloud.token_secret import TokenSecret
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError

_ON_HOST: Final = Path(__file__).with_name("push_env_on_host.py")
_ENABLED: Final = "ENABLED"
_MAX_WHY_CHARS: Final = 400


class PushState(StrEnum):
    """Result of a push on one host."""

    WRITTEN = "written"
    """Its files were updated."""
    SAME = "as it should be"
    """Its files were current already."""
    WOULD_WRITE = "would be written"
    """In a dry run: its files are not current."""
    NO_RAY = "Ray does not run"
    """Nothing was written: the host fetches the values itself when Ray is started there."""
    FAILED = "failed"
    """Nothing was written."""

    @property
    def is_bad(self) -> bool:
        return self is PushState.FAILED


@dataclass(frozen=True)
class HostPush:
    """What was done on one host, or would be done without a dry run.

    Attributes:
        changed: Variables whose files have another value now.
        removed: Variables that the fleet file no longer names.
        restart: Variables that the running Ray has with other values.
        why: Why the push failed.
    """

    host: str
    state: PushState
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    why: str = ""

    @staticmethod
    def of(result: HostResult, printed: str, error: str, *, is_dry: bool) -> HostPush:
        """Parse the result of the command on a host, with its last lines of output and of error output."""
        try:
            answer = json.loads(printed) if result.code == 0 else {}
            changed, removed, restart = (_names(answer.get(key, [])) for key in ("changed", "removed", "restart"))
            has_ray, why = answer.get("ray"), str(answer.get("why", ""))[:_MAX_WHY_CHARS]
        except (ValueError, AttributeError, TypeError, RecursionError):
            has_ray, why = None, ""
        if has_ray is False:
            return HostPush(result.host, PushState.NO_RAY)
        if has_ray is not True or why:
            ended = f"the command there ended with {result.code}: {error[:_MAX_WHY_CHARS] or 'no output'}"
            return HostPush(result.host, PushState.FAILED, why=why or result.why or ended)
        done = PushState.WOULD_WRITE if is_dry else PushState.WRITTEN
        return HostPush(result.host, done if changed or removed else PushState.SAME, changed, removed, restart)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return {**vars(self), "state": self.state.name.lower()}


class EnvironmentPush:
    """Push of one cluster's environment to its hosts.

    Args:
        versions: Variable → name of the secret version with its value.
        run: Runs a command on hosts in parallel, and calls the first argument with each line that they print.
    """

    def __init__(
        self,
        versions: Mapping[str, str],
        run: Callable[
            [Callable[[SshHost, str, bool], None], Sequence[SshHost], Callable[[SshHost], str]], list[HostResult]
        ]
        | None = None,
    ) -> None:
        self._versions = dict(versions)
        self._run = run or (lambda write, hosts, command: HostRuns(write).run(hosts, command))

    def push(
        self, hosts: Sequence[SshHost], *, is_dry: bool, check: Callable[[], None] = lambda: None
    ) -> list[HostPush]:
        """Push to ``hosts``, or return what a push would do.

        Args:
            check: Called before each host; raises when nothing may be written any more.
        """
        last: dict[tuple[str, bool], str] = {}
        command = remote_command(push_line(self._versions, is_dry=is_dry), RunEnv.AUTO, is_terminal=False)

        def command_of(host: SshHost) -> str:
            check()
            return command

        results = self._run(lambda host, line, is_error: last.update({(host.name, is_error): line}), hosts, command_of)
        return [
            HostPush.of(one, last.get((one.host, False), ""), last.get((one.host, True), ""), is_dry=is_dry)
            for one in results
        ]


def push_line(versions: Mapping[str, str], *, is_dry: bool) -> str:
    """Return the shell line that pushes on one host."""
    order = {"folder": ENVIRONMENT_FOLDER, "secrets": dict(versions), "is_dry": is_dry}
    return shlex.join(["python3", "-I", "-c", _ON_HOST.read_text(), json.dumps(order)])


def newest_versions(cluster: FleetCluster, client: Any = None) -> dict[str, str]:
    """Return variable → newest version of its secret, which hosts fetch when Ray is started there.

    Raises:
        FleetError: A secret does not exist, has no version, or its newest one is disabled.
        CloudError: Secret Manager does not answer.
    """
    found = {}
    for name, secret in sorted(cluster.environment.items()):
        versions = TokenSecret(cluster.project, secret, client).versions()
        newest = versions[0] if versions else None
        if newest is None or newest.state != _ENABLED:
            state = "has no version" if newest is None else f"has version {newest.number} as its newest, {newest.state}"
            raise FleetError(
                f"Cluster {cluster.name}, {name}: projects/{cluster.project}/secrets/{secret} {state}: add a version "
                "to it, or take the variable out of the fleet file. Nothing was written."
            )
        # With the project's ID: Google's answer has the project's number.
        found[name] = f"projects/{cluster.project}/secrets/{secret}/versions/{newest.number}"
    return found


def machines_of(cluster_hosts: ClusterHosts, slices: Iterable[SliceOfHosts]) -> tuple[list[SshHost], list[HostPush]]:
    """Return the SSH hosts of ``slices``, and failures of the hosts that cannot be reached.

    Raises:
        CloudError: Google Cloud does not answer.
    """
    reachable: list[SshHost] = []
    lost: list[HostPush] = []
    for one in slices:
        try:
            reachable += cluster_hosts.reachable(one.hosts)
        except NoHeadError as error:
            lost += [HostPush(host.name, PushState.FAILED, why=str(error)) for host in one.hosts]
    return reachable, lost


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("not a list of names")
    return tuple(value)
