"""What a host of a slice that people added does all its life: it is in the Ray of its cluster, whichever head that has.

It joins, looks whether it is in, and joins again when the head does not know it any more, refuses its token, or is
another machine. That the head is silent says nothing: it may be coming up.
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
"""For so long a host may be missing in what the head says; a new one needs some seconds."""
_DASHBOARD_PORT: Final = 8265
_TIMEOUT_S: Final = 10.0
_TOKEN_VARIABLE: Final = "RAY_AUTH_TOKEN_PATH"
_HEAD_VARIABLE: Final = "RAY_HEAD_IP"
_RESOURCES_VARIABLE: Final = "RAY_OVERRIDE_RESOURCES"


class Membership(Enum):
    """What a head says of this host."""

    IN = "it is in Ray"
    OUT = "Ray does not know it"
    REFUSED = "its token is refused"
    SILENT = "the head does not answer"


@dataclass(frozen=True)
class JoinOrder:
    """Which cluster to join, and how.

    Attributes:
        commands: What is run, one after the other; the last one starts Ray.
        resources: What the host offers.
    """

    name: str
    project: str
    zone: str
    commands: Sequence[str]
    resources: Mapping[str, Any]


class HostJoin:
    """Keeps one host in its cluster.

    Args:
        find: Where the head is; None if there is none, or nobody says.
        look: What the head at an address says of this host.
        join: Leaves whatever Ray this host is in, and joins that of the head at an address; whether that went well.
        clock: Seconds that only grow.
        tell: Given a sentence for each thing that is done.
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
        """Look once, and join if that is needed."""
        said = Membership.OUT if self._head is None else self._look(self._head)
        if said is Membership.IN:
            self._out_since = None
            return
        head = self._find()
        if head is None:
            return
        if head != self._head:
            self._join_at(head, "the head is there")
        elif said is Membership.REFUSED:
            self._join_at(head, said.value)
        elif said is Membership.OUT:
            now = self._clock()
            self._out_since = now if self._out_since is None else self._out_since
            if now - self._out_since >= MISSING_TIMEOUT_S:
                self._join_at(head, said.value)

    def _join_at(self, head: str, why: str) -> None:
        self._tell(f"Joining the head at {head}: {why}.")
        self._head = head if self._join(head) else None
        self._out_since = None


def membership(head: str) -> Membership:
    """What the head at this address says of this host."""
    there = RayCluster("head", f"http://{head}:{_DASHBOARD_PORT}", token=_token())
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
    """The address of this host in the network of the head; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((head, _DASHBOARD_PORT))
        return str(probe.getsockname()[0])


def run_commands(order: JoinOrder, head: str) -> bool:
    """Run the commands of ``order`` for the head at this address; whether all went well."""
    env = {**os.environ, _HEAD_VARIABLE: head, _RESOURCES_VARIABLE: json.dumps(dict(order.resources))}
    for command in order.commands:
        words = ["bash", "--login", "-c", f"source ~/.bashrc; {command}"]
        if (code := subprocess.run(words, env=env, stdin=subprocess.DEVNULL, check=False).returncode) != 0:
            print(f"It ended with {code}: {command}", flush=True)
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


def _token() -> str | None:
    file = os.environ.get(_TOKEN_VARIABLE) or str(Path.home() / ".ray" / "auth_token")
    with suppress(OSError, BadTokenFileError):
        return read_token_file(file)
    return None


# What a host of a slice runs when it boots, so that it joins its cluster: what Ray's autoscaler would run there.
#
# All of it comes from the cluster's file, so hosts that people add are as those that the autoscaler makes. It holds no
# secret: the commands fetch them.

JOIN_FILE: Final = "/run/tradewind/join.json"
_JOIN: Final = f"python -m tradewind.fleet.workers.join {JOIN_FILE}"
_END: Final = "END_OF_ORDER"
_USUAL_CPUS: Final = 120
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


def start_script(cluster: FleetCluster, config: Mapping[str, Any], kind: SliceType) -> str:
    """The script for hosts of slices of this ``kind``; ``config`` is what the cluster's file holds."""
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
    options = " ".join([*_options(docker, "run_options"), *_options(docker, "worker_run_options")])
    return "".join(parts) + _IN_DOCKER.format(
        image=shlex.quote(docker["image"]), container=shlex.quote(docker["container_name"]), options=options,
        folder=folder, join=_JOIN,
    )  # fmt: skip


def _options(docker: Mapping[str, Any], name: str) -> Sequence[str]:
    """As Ray has them: words of a shell."""
    return docker.get(name) or ()


def _resources(config: Mapping[str, Any], kind: SliceType) -> Mapping[str, Any]:
    """What each host offers: as much as the autoscaler's of that type."""
    for node_type in config.get("available_node_types", {}).values():
        if node_type["node_config"].get("acceleratorType") == kind.name:
            return dict(node_type["resources"])
    return {"CPU": _USUAL_CPUS, "TPU": kind.chips_per_host}


if __name__ == "__main__":
    main(sys.argv[1])
