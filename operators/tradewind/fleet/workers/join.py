"""Membership of a manual slice's host in its cluster, over any number of heads, and the host's boot script.

The host joins Ray and polls the head. It joins again when the head does not know it any more, refuses its token, or is
another machine. It ignores a head that does not answer, which may be starting.

The boot script runs the commands of the cluster's file, which Ray's autoscaler would run on its own slices. It holds
no secret: the commands fetch them.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import requests

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.fleet.cloud.heads import find_head
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.cluster import BadTokenFileError, RayCluster, read_token_file

POLL_S: Final = 20.0
MISSING_TIMEOUT_S: Final = 60.0
"""Maximum time in which the head may not list a host; a new one needs some seconds."""
_DASHBOARD_PORT: Final = 8265
_TIMEOUT_S: Final = 10.0
_TOKEN_VARIABLE: Final = "RAY_AUTH_TOKEN_PATH"
_HEAD_VARIABLE: Final = "RAY_HEAD_IP"
_RESOURCES_VARIABLE: Final = "RAY_OVERRIDE_RESOURCES"
JOIN_FILE: Final = "/run/tradewind/join.json"
_JOIN: Final = f"python -m tradewind.fleet.workers.join {JOIN_FILE}"
_END: Final = "END_OF_ORDER"
_DEFAULT_CPUS: Final = 120
_HEADER: Final = """\
#!/bin/bash
# Made by 'tradewind cluster add-worker': this host joins cluster {name}, and the next head if that has another one.
export HOME="${{HOME:-/root}}" USER="${{USER:-root}}"
"""
_IN_DOCKER: Final = """\
until docker pull {image}; do sleep 10; done
docker rm -f {container}
docker run -d --name {container} --net=host {options} --restart=always -v {folder}:{folder}:ro {image} {join}
"""


class Membership(Enum):
    """State of this host in Ray, as its head reports it."""

    IN = "it is in Ray"
    OUT = "Ray does not know it"
    REFUSED = "its token is refused"
    SILENT = "the head does not answer"


@dataclass(frozen=True)
class JoinOrder:
    """The cluster to join, and the commands for it.

    Attributes:
        commands: Run in this order; the last one starts Ray.
        resources: Ray resources of the host.
    """

    name: str
    project: str
    zone: str
    commands: Sequence[str]
    resources: Mapping[str, Any]


class HostJoin:
    """Keeps one host in its cluster.

    Args:
        find: Returns the head's address; None if no head is known.
        look: Returns the state of this host at the head with an address.
        join: Leaves Ray, and joins that of the head at an address; returns whether it succeeded.
        clock: A monotonic clock, in seconds.
        tell: Called with a sentence for each action.
    """

    def __init__(
        self,
        find: Callable[[], str | None],
        look: Callable[[str], Membership],
        join: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = print,
    ) -> None:
        self._find = find
        self._look = look
        self._join = join
        self._clock = clock
        self._tell = tell
        self._head: str | None = None
        self._out_since: float | None = None

    def step(self) -> None:
        """Poll once, and join if necessary."""
        state = Membership.OUT if self._head is None else self._look(self._head)
        if state is Membership.IN:
            self._out_since = None
            return
        head = self._find()
        if head is None:
            return
        if head != self._head:
            self._join_at(head, "the head is there")
        elif state is Membership.REFUSED:
            self._join_at(head, state.value)
        elif state is Membership.OUT:
            now = self._clock()
            self._out_since = now if self._out_since is None else self._out_since
            if now - self._out_since >= MISSING_TIMEOUT_S:
                self._join_at(head, state.value)

    def _join_at(self, head: str, why: str) -> None:
        self._tell(f"Joining the head at {head}: {why}.")
        self._head = head if self._join(head) else None
        self._out_since = None


def membership(head: str) -> Membership:
    """Ask the head at this address for the state of this host."""
    token = None
    with suppress(OSError, BadTokenFileError):
        token = read_token_file(os.environ.get(_TOKEN_VARIABLE) or str(Path.home() / ".ray" / "auth_token"))
    there = RayCluster("head", f"http://{head}:{_DASHBOARD_PORT}", token=token)
    wanted = {"state": "ALIVE", "node_ip": own_address(head)}
    query = [("limit", "10")]
    for key, value in wanted.items():
        query += [("filter_keys", key), ("filter_predicates", "="), ("filter_values", value)]
    try:
        answer = requests.get(
            f"{there.address}/api/v0/nodes", params=query, headers=there.headers, timeout=_TIMEOUT_S,
            allow_redirects=False,
        )  # fmt: skip
        if answer.status_code in (401, 403):
            return Membership.REFUSED
        is_in = bool(answer.json()["data"]["result"]["num_filtered"]) if answer.ok else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_in = None
    return Membership.SILENT if is_in is None else Membership.IN if is_in else Membership.OUT


def own_address(head: str) -> str:
    """Return the address of this host in the head's network; sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((head, _DASHBOARD_PORT))
        return str(probe.getsockname()[0])


def run_commands(order: JoinOrder, head: str) -> bool:
    """Run the commands of ``order`` for the head at this address; return whether all succeeded."""
    env = {**os.environ, _HEAD_VARIABLE: head, _RESOURCES_VARIABLE: json.dumps(dict(order.resources))}
    for command in order.commands:
        words = ["bash", "--login", "-c", f"source ~/.bashrc; {command}"]
        if (code := subprocess.run(words, env=env, stdin=subprocess.DEVNULL, check=False).returncode) != 0:
            print(f"Command failed with exit code {code}: {command}", flush=True)
            return False
    return True


def main(file: str) -> None:
    """Keep this host in the cluster that ``file`` names."""
    order = JoinOrder(**json.loads(Path(file).read_text()))

    def find() -> str | None:
        with suppress(FleetError):
            return find_head(order).internal_ip
        return None

    host = HostJoin(find, membership, lambda head: run_commands(order, head))
    while True:
        host.step()
        time.sleep(POLL_S)


def start_script(cluster: FleetCluster, config: Mapping[str, Any], kind: SliceType) -> str:
    """Return the boot script for hosts of slices of this ``kind``; ``config`` is the content of the cluster's file."""
    folder = JOIN_FILE.rpartition("/")[0]
    join = {
        "name": cluster.name,
        "project": cluster.project,
        "zone": cluster.zone,
        "commands": [*config.get("worker_setup_commands", []), *config["worker_start_ray_commands"]],
        "resources": _resources(config, kind),
    }
    parts = [_HEADER.format(name=cluster.name)]
    parts += [f"{command}\n" for command in config.get("initialization_commands", [])]
    parts.append(f"mkdir -p {folder}\ncat > {JOIN_FILE} <<'{_END}'\n{json.dumps(join, indent=1)}\n{_END}\n")
    docker: Mapping[str, Any] = config.get("docker") or {}
    if not docker.get("image"):
        return "".join([*parts, f"exec {_JOIN}\n"])
    options = " ".join([*(docker.get("run_options") or ()), *(docker.get("worker_run_options") or ())])  # shell words
    return "".join(parts) + _IN_DOCKER.format(
        image=shlex.quote(docker["image"]), container=shlex.quote(docker["container_name"]), options=options,
        folder=folder, join=_JOIN,
    )  # fmt: skip


def _resources(config: Mapping[str, Any], kind: SliceType) -> Mapping[str, Any]:
    """Return the resources of each host: those of the autoscaler's hosts of that type."""
    for node_type in config.get("available_node_types", {}).values():
        if node_type["node_config"].get("acceleratorType") == kind.name:
            return dict(node_type["resources"])
    return {"CPU": _DEFAULT_CPUS, "TPU": kind.chips_per_host}


if __name__ == "__main__":
    main(sys.argv[1])
