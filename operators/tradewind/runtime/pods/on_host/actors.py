"""Puts the actor on a reserved host.

On a TPU host it takes no resources itself: they are in the reservation. On others it takes them out of its bundle, so
that Ray gives it its GPUs.
"""

from __future__ import annotations

from typing import Any, Final

from tradewind.runtime.pods.capacity.groups import HostGroup
from tradewind.runtime.pods.capacity.reservation import Seat

_CONCURRENCY: Final = 8  # end() must get through while poll() waits


def host_actor(group: HostGroup, seat: Seat, patience_s: float) -> Any:
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
