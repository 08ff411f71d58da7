"""Which nodes Ray would make anew for a changed cluster file: those that were asked for in other words than it has.

Of the head that ends every job at once, of a slice those that run on it, and Ray asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tradewind.fleet.errors import FleetError
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


class RelaunchRefusedError(FleetError):
    """Ray would make nodes anew, with all that runs on them."""


@dataclass(frozen=True)
class ApplyPlan:
    """What it takes for a cluster that runs to follow its file.

    Attributes:
        is_current: Nothing: it does.
        relaunched: The names of the nodes that Ray would make anew, so that it cannot be done while they run.
    """

    cluster: str
    is_current: bool = False
    relaunched: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what ends anything that runs.

        Raises:
            RelaunchRefusedError: This does.
        """
        if self.relaunched:
            raise RelaunchRefusedError(
                f"Cluster {self.cluster}: Ray would make {', '.join(self.relaunched)} anew, and end what runs there: "
                f"'tradewind cluster restart {self.cluster}' does that, and asks first. Nothing was changed."
            )

    @property
    def sentence(self) -> str:
        """The same for people, if it can be done."""
        if self.is_current:
            return f"Cluster {self.cluster} is as its file has it: nothing was done."
        return f"Cluster {self.cluster} can follow its file while it runs."

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        may_apply = not (self.is_current or self.relaunched)
        return {
            "cluster": self.cluster, "is_current": self.is_current, "may_apply": may_apply,
            "would_relaunch": list(self.relaunched),
        }  # fmt: skip
