"""Puts the actor on a reserved host.

On a TPU host it takes no resources itself: they are in the reservation. On others it takes them out of its bundle, so
that Ray gives it its GPUs.
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


def host_actor(group: HostGroup, seat: ReservedHost, patience_s: float) -> Any:
    """A fresh actor on this host, which ends its process when nobody has asked for ``patience_s``."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if group.is_tpu:
        return actor_on(seat.node.id, patience_s)
    resources = dict(group.resources)
    return _actor(
        PlacementGroupSchedulingStrategy(seat.placement, seat.bundle),
        patience_s,
        num_cpus=resources.pop("CPU", 0),
        num_gpus=resources.pop("GPU", 0),
        resources=resources,
    )


def actor_on(node_id: str, patience_s: float) -> Any:
    """A fresh actor on this node, without resources."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return _actor(NodeAffinitySchedulingStrategy(node_id, soft=False), patience_s, num_cpus=0)


def _actor(strategy: Any, patience_s: float, **taken: Any) -> Any:
    import ray

    from tradewind.runtime.pods.on_host.host import PodHost

    options = {"max_restarts": 0, "max_concurrency": _CONCURRENCY, "scheduling_strategy": strategy, **taken}
    return ray.remote(PodHost).options(**options).remote(patience_s)


# The actor on each host of a slice that a person develops on: what that person starts there ends with it.
#
# What comes over ``ssh`` carries this actor's mark. It is ended when the slice is given back; and when this actor was
# killed, whoever uses the host next takes it for a stray.


class DevHost:
    """One per host. ``session`` names the folder with the person's files."""

    def __init__(self, session: str) -> None:
        import ray

        self._ip = str(ray.util.get_node_ip_address())
        self._mark = process_mark(self._ip, os.getpid())
        self._folder = Path.home() / DEV_FOLDER / session

    def prepare(self) -> DevHostInfo:
        """End what others have left on the chips; what one needs to log in here."""
        if kill_orphans(self._ip, holds_chips=bool(chip_devices())):
            remove_lockfile()
        return DevHostInfo(self._ip, self._mark)

    def is_up(self) -> bool:
        return True

    def clear(self) -> int:
        """End what the person has started, and remove the files; how many processes there were."""
        ended = kill_marked(self._mark)
        if chip_devices():
            remove_lockfile()
        shutil.rmtree(self._folder, ignore_errors=True)
        return len(ended)


def dev_host(session: str, seat: ReservedHost) -> Any:
    """The actor on a reserved host, without resources: they are in the reservation."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(seat.node.id, soft=False)
    return ray.remote(DevHost).options(num_cpus=0, max_restarts=0, scheduling_strategy=here).remote(session)
