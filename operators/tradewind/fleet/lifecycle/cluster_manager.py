"""A cluster is started, stopped, restarted and changed: each under its marker, and each to be run again if it ended
before it was done.

What may be done is decided by what there is, read anew once the marker is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode
from tradewind.fleet.cluster_files import CLUSTERS_FOLDER, GeneratedFiles
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.inventory import (
    CONFIG_LABEL,
    LAUNCH_LABEL,
    NODE_TYPE_LABEL,
    NOT_SET_UP,
    READY,
    STATUS_LABEL,
    CloudZone,
    ClusterState,
    Inventory,
    VirtualMachine,
)
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.lock import ClusterLock, HeldClusterLock

# Which nodes Ray would make anew for a changed cluster file: those that were asked for in other words than it has.
#
# Of the head that ends every job at once, of a slice those that run on it, and Ray asks nobody.

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


# What a stop deletes, and what it leaves alone.
#
# Reserved slices and queued resources are somebody's who waited for them: they go only when that is asked for. The
# state disk goes only when that is asked for, too.


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


class WrongStateError(FleetError):
    """The cluster is not in a state in which this can be done."""


class ClusterManager:
    """What is done to one cluster.

    Args:
        config_hash: The hash in its cluster file, of which its nodes have a label.
        tell: Given a sentence for each thing that is done.

    Raises (every method):
        ClusterBusyError: Somebody else is changing the cluster.
        InterruptedOperationError: Another operation ended before it was done.
        MarkerLostError: The marker could not be renewed, so others may be changing the cluster.
        CloudError: Google Cloud refuses, or does not answer.
        LauncherError: Ray's launcher failed.
        StoreError: The bucket with the marker cannot be used.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        config_hash: str,
        *,
        zone: CloudZone,
        marker: ClusterLock,
        launcher: RayLauncher,
        tell: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._config_hash = config_hash
        self._zone = zone
        self._marker = marker
        self._launcher = launcher
        self._tell = tell

    def inventory(self) -> Inventory:
        """What there is of the cluster."""
        return self._zone.inventory().of(self._cluster.name)

    def start(self) -> None:
        """Have a head that is set up. What an earlier start has left is gone on with.

        Raises:
            WrongStateError: One is, from another file.
            WrongStateError: There is more than one.
        """
        if self._is_started(self.inventory()):
            return
        with self._marker.take("start", "making the head") as held:
            found = self.inventory()
            with _over_if_refused(held):
                is_started = self._is_started(found)
            if not is_started:
                self._prepare(found, held)
                self._launch(held)
            held.finish()

    def stop(self, *, include_reserved: bool = False, delete_state: bool = False) -> None:
        """Have nothing of it left, but what is reserved and its state, unless they are to go too.

        It begins anew whatever was interrupted: afterwards nothing is half-done.
        """
        with self._marker.take("stop", "deleting", is_anew=True) as held:
            zone = self._zone.under(held.check)
            delete_nodes(zone, self._cluster.name, self._tell, include_reserved=include_reserved)
            if delete_state:
                zone.delete_disk(self._cluster.state_disk)
                self._tell(f"Deleted disk {self._cluster.state_disk}.")
            held.finish()

    def check_restartable(self, *, is_begun: bool = False) -> None:
        """Refuse a restart of what is not there.

        Args:
            is_begun: One was interrupted, which may have left no head; then nothing but this restart makes one.

        Raises:
            WrongStateError: There is no head, or more than one.
        """
        headless = (ClusterState.ABSENT, ClusterState.HEADLESS) if is_begun else ()
        self._want(self.inventory(), ClusterState.UP, ClusterState.HALF_MADE, *headless)

    def relaunch(self, held: HeldClusterLock) -> None:
        """End Ray on the head, and start it again from the file as it is now; a head that is not there is made.

        Args:
            held: The marker, held for what this is a part of.
        """
        self._prepare(self.inventory(), held)
        self._launch(held)

    def restart_slice_setup(self, held: HeldClusterLock) -> None:
        """Have the autoscaler run the start commands on all hosts of its slices, which end the Ray that runs there."""
        zone = self._zone.under(held.check)
        for one in self.inventory().slices:
            if one.is_of_autoscaler and one.state == READY:
                zone.label_slice(one, {STATUS_LABEL: NOT_SET_UP})

    def plan_apply(self) -> ApplyPlan:
        """Whether the head's autoscaler can follow the file as it is now, while all goes on that runs.

        Raises:
            WrongStateError: There is no head that was set up.
        """
        found = self.inventory()
        self._want(found, ClusterState.UP)
        if found.heads[0].labels.get(CONFIG_LABEL) == self._config_hash:
            return ApplyPlan(self._cluster.name, is_current=True)
        return ApplyPlan(self._cluster.name, relaunched=tuple(relaunched(found, self._launcher.launch_hashes())))

    def apply(self) -> None:
        """Have it follow the file; nothing if it does. What there was before this had the marker does not count.

        Raises:
            WrongStateError: There is no head that was set up.
            RelaunchRefusedError: That would end what runs.
        """
        with self._marker.take("apply", "changing the autoscaler's file") as held:
            with _over_if_refused(held):
                plan = self.plan_apply()
                plan.check()
            if plan.is_current:
                self._tell(plan.sentence)
            else:
                self._launch(held, is_restart=False)
            held.finish()

    def _is_started(self, found: Inventory) -> bool:
        """Whether there is nothing to start."""
        name = self._cluster.name
        if found.state is ClusterState.DOUBLE:
            heads = ", ".join(one.name for one in found.heads)
            raise WrongStateError(f"Cluster {name} has more than one head ({heads}): stop it, and start it again.")
        if found.state is not ClusterState.UP:
            return False
        if found.heads[0].labels.get(CONFIG_LABEL) != self._config_hash:
            raise WrongStateError(
                f"Cluster {name} runs already, from another file than the one that it has now: 'tradewind cluster "
                f"apply {name}' changes it while it runs, 'tradewind cluster restart {name}' ends what runs there."
            )
        self._tell(f"Cluster {name} was started already: {found.heads[0].name}.")
        return True

    def _want(self, found: Inventory, *states: ClusterState) -> None:
        if found.state not in states:
            advice = "stop it, and start it again" if found.state is ClusterState.DOUBLE else "start it"
            raise WrongStateError(f"Cluster {self._cluster.name}: {found.state.value}: {advice}. Nothing was changed.")

    def _prepare(self, found: Inventory, held: HeldClusterLock) -> None:
        """Nothing is in the head's way, and what it needs is there."""
        zone = self._zone.under(held.check)
        if found.dead_heads:
            zone.delete_machines(found.dead_heads)
            self._tell(f"Deleted {', '.join(one.name for one in found.dead_heads)}, which did not run any more.")
        if zone.make_disk(self._cluster):
            self._tell(f"Made disk {self._cluster.state_disk}.")

    def _launch(self, held: HeldClusterLock, *, is_restart: bool = True) -> None:
        """A head that was made earlier gets the hash of the file that it follows from now on, as its label."""
        held.check()
        self._launcher.up(held, is_restart=is_restart)
        (head,) = self.inventory().heads
        if head.labels.get(CONFIG_LABEL) != self._config_hash:
            self._zone.under(held.check).label_machine(head.name, {CONFIG_LABEL: self._config_hash})


@contextmanager
def _over_if_refused(held: HeldClusterLock) -> Iterator[None]:
    """Where nothing may be done, nothing is left half-done that would keep others from the cluster."""
    try:
        yield
    except (WrongStateError, RelaunchRefusedError):
        held.finish()
        raise


def delete_nodes(zone: CloudZone, cluster: str, tell: Callable[[str], None], *, include_reserved: bool) -> None:
    """Delete what there is of a cluster, and look again, until nothing is left.

    Raises:
        CloudError: Google Cloud refuses, or does not answer.
    """
    while not (plan := Teardown.of(zone.inventory().of(cluster), include_reserved=include_reserved)).is_empty:
        if plan.machines:
            zone.delete_machines(plan.machines)
            tell(f"Deleted {', '.join(one.name for one in plan.machines)}.")
        zone.delete_slices(plan.slices, plan.queues, lambda name: tell(f"Deleted {name}."))


# A cluster of the fleet file put together with all that acts on it: its file, its zone, its marker, Ray's launcher.


def cluster_file(cluster: FleetCluster, fleet: Fleet) -> Path:
    """The cluster's file for Ray's launcher."""
    return fleet.file.parent / CLUSTERS_FOLDER / f"{cluster.name}.yaml"


def config_hash(cluster: FleetCluster, fleet: Fleet, *, must_be_fresh: bool = True) -> str:
    """The hash in the cluster's file.

    Raises:
        FleetError: The file is not as the fleet file has it.
    """
    import yaml  # type: ignore[import-untyped]

    file, files = cluster_file(cluster, fleet), GeneratedFiles.of(fleet)
    if must_be_fresh and file in files.stale:
        raise FleetError(f"{file} is not as {fleet.file} has it: run 'tradewind cluster update-configs' first.")
    return str(yaml.safe_load(files.texts[file])["provider"]["labels"][CONFIG_LABEL])


def cluster_manager(
    cluster: FleetCluster,
    fleet: Fleet,
    tell: Callable[[str], None],
    echo: Callable[[str], None],
    *,
    must_be_fresh: bool = True,
) -> ClusterManager:
    """What can be done to a cluster of the fleet.

    Args:
        tell: Given a sentence for each thing that is done.
        echo: Given each line that Ray's launcher prints.

    Raises:
        FleetError: Its file is not as the fleet file has it, or Google Cloud cannot be asked.
    """
    return ClusterManager(
        cluster,
        config_hash(cluster, fleet, must_be_fresh=must_be_fresh),
        zone=CloudZone(cluster.project, cluster.zone),
        marker=ClusterLock.of(cluster),
        launcher=RayLauncher(cluster_file(cluster, fleet), echo),
        tell=tell,
    )
