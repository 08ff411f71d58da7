"""Which nodes Ray would make anew for a changed cluster file: those that were asked for in other words than it has.

Of the head that ends every job at once, of a slice those that run on it, and Ray asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from tradewind.fleet.lifecycle.inventory import LAUNCH_LABEL, NODE_TYPE_LABEL, Inventory

_DEAD = frozenset({"PREEMPTED", "TERMINATED", "STOPPED", "DELETING"})


def relaunched(inventory: Inventory, hashes: Mapping[str, str]) -> list[str]:
    """The names of the nodes of a cluster that Ray would make anew; ``hashes`` are those of its file, by node type."""
    slices = [one for one in inventory.slices if one.is_of_autoscaler and one.state not in _DEAD]
    living = {**{one.name: one.labels for one in inventory.heads}, **{one.name: one.labels for one in slices}}
    return [
        name
        for name, labels in living.items()
        if LAUNCH_LABEL in labels and hashes.get(labels.get(NODE_TYPE_LABEL, "")) != labels[LAUNCH_LABEL]
    ]
