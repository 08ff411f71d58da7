"""What a stop deletes, and what it leaves alone.

Reserved slices and queued resources are somebody's who waited for them: they go only when that is asked for. The state
disk goes only when that is asked for, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode
from tradewind.fleet.lifecycle.inventory import Inventory, VirtualMachine


@dataclass(frozen=True)
class Teardown:
    """What is deleted of a cluster: the machines first, since a head would make its slices again."""

    machines: Sequence[VirtualMachine] = ()
    slices: Sequence[TpuNode] = ()
    queues: Sequence[QueuedTpu] = ()
    kept_slices: Sequence[TpuNode] = ()
    kept_queues: Sequence[QueuedTpu] = ()

    @staticmethod
    def of(inventory: Inventory, *, include_reserved: bool = False) -> Teardown:
        """For what there is of one cluster. A slice that a queued resource brought goes with that.

        If that is also for slices of others, it goes not at all: to delete one of them suspends all.
        """
        queues = {queue.name for queue in inventory.queues}
        by_itself = [one for one in inventory.slices if one.queue not in queues]
        kept = [one for one in by_itself if one.queue is not None or (one.is_reserved and not include_reserved)]
        return Teardown(
            inventory.machines,
            [one for one in by_itself if one not in kept],
            inventory.queues if include_reserved else (),
            [*kept, *([] if include_reserved else [one for one in inventory.slices if one.queue in queues])],
            () if include_reserved else inventory.queues,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to delete."""
        return not (self.machines or self.slices or self.queues)

    def lines(self) -> Iterator[tuple[str, str, str, str]]:
        """What is done, about what, its name, and its state."""
        yield from (("delete", "head" if one.is_head else "machine", one.name, one.status) for one in self.machines)
        yield from (("delete", one.slice_type or "slice", one.name, one.state) for one in self.slices)
        yield from (("delete", "queued resource", one.name, one.state) for one in self.queues)
        yield from (("keep", one.slice_type or "slice", one.name, f"{one.state}, reserved") for one in self.kept_slices)
        yield from (("keep", "queued resource", one.name, one.state) for one in self.kept_queues)
