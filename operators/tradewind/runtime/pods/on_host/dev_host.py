"""The actor on each host of a slice that a person develops on: what that person starts there ends with it.

What comes over ``ssh`` carries this actor's mark. It is ended when the slice is given back; and when this actor was
killed, whoever uses the host next takes it for a stray.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tradewind.cloud_tpu.on_hosts.dev_slices import DEV_FOLDER, DevHostFacts
from tradewind.runtime.pods.capacity.reservation import Seat
from tradewind.runtime.pods.on_host.strays import chip_devices, end_marked, end_strays, mark_of, remove_lockfile


class DevHost:
    """One per host. ``session`` names the folder with the person's files."""

    def __init__(self, session: str) -> None:
        import ray

        self._ip = str(ray.util.get_node_ip_address())
        self._mark = mark_of(self._ip, os.getpid())
        self._folder = Path.home() / DEV_FOLDER / session

    def prepare(self) -> DevHostFacts:
        """End what others have left on the chips; what one needs to log in here."""
        if end_strays(self._ip, holds_chips=bool(chip_devices())):
            remove_lockfile()
        return DevHostFacts(self._ip, self._mark)

    def is_up(self) -> bool:
        return True

    def clear(self) -> int:
        """End what the person has started, and remove the files; how many processes there were."""
        ended = end_marked(self._mark)
        if chip_devices():
            remove_lockfile()
        shutil.rmtree(self._folder, ignore_errors=True)
        return len(ended)


def dev_host(session: str, seat: Seat) -> Any:
    """The actor on a reserved host, without resources: they are in the reservation."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(seat.node.id, soft=False)
    return ray.remote(DevHost).options(num_cpus=0, max_restarts=0, scheduling_strategy=here).remote(session)
