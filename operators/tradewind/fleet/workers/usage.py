"""Whether somebody uses a slice, by what Ray says of each of its hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tradewind.cloud_tpu.ray_labels import SLICE_NAME_LABEL
from tradewind.fleet.errors import FleetError
from tradewind.ray_jobs.nodes.nodes import NodeFacts

_NOBODYS: Final = frozenset({"memory", "object_store_memory"})
"""What is in use of these on a host on which nothing runs."""


class SliceInUseError(FleetError):
    """Somebody uses the slice, or nobody can say that no one does."""


def check_unused(nodes: Iterable[NodeFacts], name: str) -> None:
    """Refuse to touch the slice called ``name`` while a task or an actor holds anything of one of its hosts.

    Raises:
        SliceInUseError: One does, or Ray does not tell.
    """
    hosts = [node for node in nodes if node.is_alive and node.labels.get(SLICE_NAME_LABEL) == name]
    if unknown := [host.ip for host in hosts if host.free is None]:
        raise SliceInUseError(
            f"Slice {name}: Ray does not tell what is in use on {', '.join(unknown)}: try again in a minute. Nothing "
            "was changed."
        )
    taken = [
        f"{host.total[what] - (host.free or {}).get(what, 0):g} {what} on {host.ip}"
        for host in hosts
        for what in sorted(host.total)
        if what not in _NOBODYS and (host.free or {}).get(what, 0) < host.total[what]
    ]
    if taken:
        raise SliceInUseError(
            f"Slice {name} is in use ({', '.join(taken)}): stop what runs there first. Nothing was changed."
        )
