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
    """What became of one host."""

    WRITTEN = "written"
    """Its files are as they should be now."""
    SAME = "as it should be"
    """They were before."""
    WOULD_WRITE = "would be written"
    """In a dry run: they are not as they should be."""
    NO_RAY = "Ray does not run"
    """Nothing was written: it fetches them itself when Ray is started there."""
    FAILED = "failed"
    """Nothing was written."""

    @property
    def is_bad(self) -> bool:
        return self is PushState.FAILED


@dataclass(frozen=True)
class HostPush:
    """What was done on one host, or would be.

    Attributes:
        changed: The variables that have another value in their files now.
        removed: Those that the fleet file does not name any more.
        restart: Those that its Ray, which runs, has with other values.
        why: Why it failed.
    """

    host: str
    state: PushState
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    why: str = ""

    @staticmethod
    def of(result: HostResult, printed: str, said: str, *, is_dry: bool) -> HostPush:
        """From how the command ended there, the last line that it printed, and the last that it said of errors."""
        try:
            told = json.loads(printed) if result.code == 0 else {}
            changed, removed, restart = (_names(told.get(key, [])) for key in ("changed", "removed", "restart"))
            has_ray, why = told.get("ray"), str(told.get("why", ""))[:_MAX_WHY_CHARS]
        except (ValueError, AttributeError, TypeError, RecursionError):
            has_ray, why = None, ""
        if has_ray is False:
            return HostPush(result.host, PushState.NO_RAY)
        if has_ray is not True or why:
            ended = f"the command there ended with {result.code}: {said[:_MAX_WHY_CHARS] or 'it said nothing'}"
            return HostPush(result.host, PushState.FAILED, why=why or result.why or ended)
        done = PushState.WOULD_WRITE if is_dry else PushState.WRITTEN
        return HostPush(result.host, done if changed or removed else PushState.SAME, changed, removed, restart)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**vars(self), "state": self.state.name.lower()}


class EnvironmentPush:
    """Brings the environment of one cluster to its hosts.

    Args:
        versions: Variable → the name of the version that has its value.
        run: Runs a command on hosts at once, and gives each line that they print to the first argument.
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
        """Do it on ``hosts``, or only say what would be done.

        Args:
            check: Asked before each host; raises when nothing may be written any more.
        """
        last: dict[tuple[str, bool], str] = {}

        def write(host: SshHost, line: str, is_error: bool) -> None:
            last[host.name, is_error] = line

        command = remote_command(push_line(self._versions, is_dry=is_dry), RunEnv.AUTO, is_terminal=False)

        def command_of(host: SshHost) -> str:
            check()
            return command

        results = self._run(write, hosts, command_of)
        return [
            HostPush.of(one, last.get((one.host, False), ""), last.get((one.host, True), ""), is_dry=is_dry)
            for one in results
        ]


def push_line(versions: Mapping[str, str], *, is_dry: bool) -> str:
    """The line for a shell that does it on one host."""
    order = {"folder": ENVIRONMENT_FOLDER, "secrets": dict(versions), "is_dry": is_dry}
    return shlex.join(["python3", "-I", "-c", _ON_HOST.read_text(), json.dumps(order)])


def newest_versions(cluster: FleetCluster, client: Any = None) -> dict[str, str]:
    """Variable → the newest version of its secret, which is what a host fetches when Ray is started there.

    Raises:
        FleetError: A secret is not there, has no version, or its newest one is disabled.
        CloudError: Secret Manager does not say.
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
        # As it was asked for: Google names the project by its number.
        found[name] = f"projects/{cluster.project}/secrets/{secret}/versions/{newest.number}"
    return found


def machines_of(there: ClusterHosts, slices: Iterable[SliceOfHosts]) -> tuple[list[SshHost], list[HostPush]]:
    """Return the SSH hosts of ``slices``, and failures of the hosts that cannot be reached.

    Raises:
        CloudError: Google Cloud does not answer.
    """
    reachable: list[SshHost] = []
    lost: list[HostPush] = []
    for one in slices:
        try:
            reachable += there.reachable(one.hosts)
        except NoHeadError as error:
            lost += [HostPush(host.name, PushState.FAILED, why=str(error)) for host in one.hosts]
    return reachable, lost


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("no list of names")
    return tuple(value)
