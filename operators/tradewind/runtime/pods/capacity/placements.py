"""What a pod has reserved is given back when its driver dies, also where that driver is a Ray task or an actor.

Ray removes a placement group when the job that made it ends. A worker that dies in the midst of a job leaves its groups
behind, and with them a slice that nobody can have until the job is over. So a worker has them made by an actor on its
own node: it lives apart from the worker, watches it, and ends when the worker does, its placement groups with it.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

_STRATEGY: Final = "STRICT_SPREAD"


class Placements:
    """Makes placement groups that go when this process goes; used by one thread at a time."""

    def __init__(self) -> None:
        self._maker: Any = None

    def make(self, bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]) -> Any:
        """A placement group of these bundles, each on a node of its own that meets its label selector."""
        import ray
        from ray._private.worker import SCRIPT_MODE, global_worker

        if global_worker.mode == SCRIPT_MODE:
            return _make(bundles, selectors)
        if self._maker is None:
            self._maker = _start_maker()
        return ray.get(self._maker.make.remote(bundles, selectors))

    def close(self) -> None:
        """What is left of them goes; with a driver, when it ends."""
        import ray

        if self._maker is not None:
            with suppress(Exception):  # Ray is going down, and the actor with it
                ray.kill(self._maker)
            self._maker = None


class PlacementMaker:
    """The actor; ``owner`` is the process on this machine for which it makes placement groups."""

    def __init__(self, owner: int) -> None:
        self._owner = os.pidfd_open(owner)
        threading.Thread(target=self._watch, daemon=True, name="watch-owner").start()

    def make(self, bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]) -> Any:
        return _make(bundles, selectors)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._owner, select.POLLIN)
        poller.poll()
        os._exit(0)  # Ray removes what a detached actor has made when that actor is over


def _make(bundles: Sequence[Mapping[str, float]], selectors: Sequence[Mapping[str, str]]) -> Any:
    from ray.util.placement_group import placement_group

    return placement_group(
        [dict(bundle) for bundle in bundles],
        strategy=_STRATEGY,
        bundle_label_selector=[dict(selector) for selector in selectors],
    )


def _start_maker() -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": 0, "lifetime": "detached", "scheduling_strategy": here}
    return ray.remote(PlacementMaker).options(**options).remote(os.getpid())
