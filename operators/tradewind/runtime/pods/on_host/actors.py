"""Actors on reserved hosts: those of a pod, and those of a development session.

On a TPU host an actor takes no resources itself: the reservation has them. On others it takes those of its bundle, so
that Ray assigns its GPUs.

In a development session, each process that a user starts over ``ssh`` carries the mark of the actor on its host. The
actor kills it when the slice is released. If the actor itself was killed, the next pod kills the process as an orphan.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from tradewind.cloud_tpu.host_files import DEV_FOLDER, DevHostInfo
from tradewind.runtime.pods.capacity.reservation import ReservedHost
from tradewind.runtime.pods.capacity.slices import HostGroup
from tradewind.runtime.pods.on_host.orphans import (
    chip_devices,
    kill_marked,
    kill_orphans,
    process_mark,
    remove_lockfile,
)

_CONCURRENCY: Final = 8  # end() must get through while poll() waits


def host_actor(group: HostGroup, host: ReservedHost, driver_timeout_s: float) -> Any:
    """Return a fresh actor on this host, which kills its process after ``driver_timeout_s`` without a call."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if group.is_tpu:
        return actor_on(host.node.id, driver_timeout_s)
    resources = dict(group.resources)
    return _actor(
        PlacementGroupSchedulingStrategy(host.placement, host.bundle),
        driver_timeout_s,
        num_cpus=resources.pop("CPU", 0),
        num_gpus=resources.pop("GPU", 0),
        resources=resources,
    )


def actor_on(node_id: str, driver_timeout_s: float) -> Any:
    """Return a fresh actor on this node, without resources."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return _actor(NodeAffinitySchedulingStrategy(node_id, soft=False), driver_timeout_s, num_cpus=0)


def _actor(strategy: Any, driver_timeout_s: float, **resources: Any) -> Any:
    import ray

    from tradewind.runtime.pods.on_host.host import PodHost

    options = {"max_restarts": 0, "max_concurrency": _CONCURRENCY, "scheduling_strategy": strategy, **resources}
    return ray.remote(PodHost).options(**options).remote(driver_timeout_s)


class DevHost:
    """The actor on each host of a development session, which names the folder with the user's files."""

    def __init__(self, session: str) -> None:
        import ray

        self._ip = str(ray.util.get_node_ip_address())
        self._mark = process_mark(self._ip, os.getpid())
        self._folder = Path.home() / DEV_FOLDER / session

    def prepare(self) -> DevHostInfo:
        """Kill orphans on the chips; return the facts for a login here."""
        if kill_orphans(self._ip, holds_chips=bool(chip_devices())):
            remove_lockfile()
        return DevHostInfo(self._ip, self._mark)

    def is_up(self) -> bool:
        return True

    def clear(self) -> int:
        """Kill the user's processes and remove the files; return the number of processes."""
        killed = kill_marked(self._mark)
        if chip_devices():
            remove_lockfile()
        shutil.rmtree(self._folder, ignore_errors=True)
        return len(killed)


def dev_host(session: str, host: ReservedHost) -> Any:
    """Return the session's actor on a reserved host, without resources: the reservation has them."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(host.node.id, soft=False)
    return ray.remote(DevHost).options(num_cpus=0, max_restarts=0, scheduling_strategy=here).remote(session)
