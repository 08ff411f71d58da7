"""What a host of a slice runs when it boots, so that it joins its cluster: what Ray's autoscaler would run there.

All of it comes from the cluster's file, so hosts that people add are as those that the autoscaler makes. It holds no
secret: the commands fetch them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.cloud_tpu.slice_types import SliceType
from tradewind.fleet.clusters import FleetCluster

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
