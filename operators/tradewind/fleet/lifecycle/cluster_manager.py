"""Start, stop, restart and change a cluster, each under its lock; a command that ended early can be run again.

Each command decides by the inventory that it reads under the lock.

A stop keeps reserved slices and queued resources, which their users waited for, and the state disk, unless the user
requests their deletion. An apply is refused if Ray would relaunch a node: a relaunched head ends every job at once, a
relaunched slice those that run on it, and Ray does not ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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
from tradewind.storage.bounded_read import SMALL
from tradewind.storage.files import read_contents

_CONFIG_HASH: Final = re.compile(rf'^ *{CONFIG_LABEL}: "([0-9a-f]{{1,64}})"$', re.MULTILINE)
_DEAD = frozenset({"PREEMPTED", "TERMINATED", "STOPPED", "DELETING"})


def relaunched(inventory: Inventory, hashes: Mapping[str, str]) -> list[str]:
    """Return the names of the nodes that Ray would relaunch; ``hashes`` are the file's, by node type."""
    slices = [one for one in inventory.slices if one.is_of_autoscaler and one.state not in _DEAD]
    living = {**{one.name: one.labels for one in inventory.heads}, **{one.name: one.labels for one in slices}}
    return [
        name
        for name, labels in living.items()
        if LAUNCH_LABEL in labels and hashes.get(labels.get(NODE_TYPE_LABEL, "")) != labels[LAUNCH_LABEL]
    ]


class RelaunchRefusedError(FleetError):
    """Ray would relaunch nodes and end what runs on them."""


@dataclass(frozen=True)
class ApplyPlan:
    """Effects of applying its file to a running cluster.

    Attributes:
        is_current: The cluster follows its file already.
        relaunched: The names of the nodes that Ray would relaunch, which forbids the apply.
    """

    cluster: str
    is_current: bool = False
    relaunched: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that the apply ends nothing that runs.

        Raises:
            RelaunchRefusedError: It would relaunch nodes.
        """
        if self.relaunched:
            raise RelaunchRefusedError(
                f"Cluster {self.cluster}: Ray would relaunch {', '.join(self.relaunched)} and end what runs there: "
                f"'tradewind cluster restart {self.cluster}' does that, and asks first. Nothing was changed."
            )

    @property
    def sentence(self) -> str:
        """The plan as a sentence, if ``check`` allows it."""
        if self.is_current:
            return f"Cluster {self.cluster} follows its file already: nothing was done."
        return f"Cluster {self.cluster} can follow its file while it runs."

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        may_apply = not (self.is_current or self.relaunched)
        return {
            "cluster": self.cluster, "is_current": self.is_current, "may_apply": may_apply,
            "would_relaunch": list(self.relaunched),
        }  # fmt: skip


@dataclass(frozen=True)
class Teardown:
    """Resources that a stop deletes: the machines first, since a head would make its slices again."""

    machines: Sequence[VirtualMachine] = ()
    slices: Sequence[TpuNode] = ()
    queues: Sequence[QueuedTpu] = ()
    kept_slices: Sequence[TpuNode] = ()
    kept_queues: Sequence[QueuedTpu] = ()

    @staticmethod
    def of(inventory: Inventory, *, include_reserved: bool = False) -> Teardown:
        """Return the teardown of a cluster's inventory. A queued resource is deleted with its slice.

        One that also has slices of other clusters is kept, with its slices: deleting one of them suspends all.
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
        """Yield action, kind, name and state of each resource."""
        yield from (("delete", "head" if one.is_head else "machine", one.name, one.status) for one in self.machines)
        yield from (("delete", one.slice_type or "slice", one.name, one.state) for one in self.slices)
        yield from (("delete", "queued resource", one.name, one.state) for one in self.queues)
        yield from (("keep", one.slice_type or "slice", one.name, f"{one.state}, reserved") for one in self.kept_slices)
        yield from (("keep", "queued resource", one.name, one.state) for one in self.kept_queues)


class WrongStateError(FleetError):
    """The cluster's state does not allow this operation."""


class ClusterManager:
    """Operations on one cluster.

    Args:
        config_hash: The hash in its cluster file, which its nodes have as a label.
        tell: Called with a sentence for each action.

    Raises (every method):
        ClusterBusyError: Another command is changing the cluster.
        InterruptedOperationError: Another operation ended early.
        MarkerLostError: The lock could not be renewed, so another command may be changing the cluster.
        CloudError: Google Cloud refuses, or does not answer.
        LauncherError: Ray's launcher failed.
        StoreError: The bucket with the lock cannot be used.
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
        """Return the cluster's resources."""
        return self._zone.inventory().of(self._cluster.name)

    def start(self) -> None:
        """Create a head and set it up, or resume an earlier start; does nothing if the cluster is up.

        Raises:
            WrongStateError: The head was set up from another file.
            WrongStateError: There is more than one head.
        """
        if self._is_started(self.inventory()):
            return
        with self._marker.take("start", "making the head") as held:
            found = self.inventory()
            with _finished_if_refused(held):
                is_started = self._is_started(found)
            if not is_started:
                self._prepare(found, held)
                self._launch(held)
            held.finish()

    def stop(self, *, include_reserved: bool = False, delete_state: bool = False) -> None:
        """Delete the cluster, except reserved slices and its state disk, unless these are requested too.

        It replaces any interrupted operation: afterwards nothing is half-done.
        """
        with self._marker.take("stop", "deleting", is_anew=True) as held:
            zone = self._zone.under(held.check)
            delete_nodes(zone, self._cluster.name, self._tell, include_reserved=include_reserved)
            if delete_state:
                zone.delete_disk(self._cluster.state_disk)
                self._tell(f"Deleted disk {self._cluster.state_disk}.")
            held.finish()

    def check_restartable(self, *, is_begun: bool = False) -> None:
        """Check that the cluster has a head to restart.

        Args:
            is_begun: A restart was interrupted, which may have left no head; then this restart makes one.

        Raises:
            WrongStateError: There is no head, or more than one.
        """
        headless = (ClusterState.ABSENT, ClusterState.HEADLESS) if is_begun else ()
        self._check_state(self.inventory(), ClusterState.UP, ClusterState.HALF_MADE, *headless)

    def relaunch(self, held: HeldClusterLock) -> None:
        """Restart Ray on the head from the current file; create a missing head.

        Args:
            held: The lock of the operation that this is a part of.
        """
        self._prepare(self.inventory(), held)
        self._launch(held)

    def restart_slice_setup(self, held: HeldClusterLock) -> None:
        """Have the autoscaler run the start commands on all hosts of its slices, which restart Ray there."""
        zone = self._zone.under(held.check)
        for one in self.inventory().slices:
            if one.is_of_autoscaler and one.state == READY:
                zone.label_slice(one, {STATUS_LABEL: NOT_SET_UP})

    def plan_apply(self) -> ApplyPlan:
        """Check whether the head's autoscaler can follow the current file without ending anything that runs.

        Raises:
            WrongStateError: There is no head that was set up.
        """
        found = self.inventory()
        self._check_state(found, ClusterState.UP)
        if found.heads[0].labels.get(CONFIG_LABEL) == self._config_hash:
            return ApplyPlan(self._cluster.name, is_current=True)
        return ApplyPlan(self._cluster.name, relaunched=tuple(relaunched(found, self._launcher.launch_hashes())))

    def apply(self) -> None:
        """Make the cluster follow its file, as planned anew under the lock; does nothing if it does already.

        Raises:
            WrongStateError: There is no head that was set up.
            RelaunchRefusedError: That would end what runs.
        """
        with self._marker.take("apply", "changing the autoscaler's file") as held:
            with _finished_if_refused(held):
                plan = self.plan_apply()
                plan.check()
            if plan.is_current:
                self._tell(plan.sentence)
            else:
                self._launch(held, is_restart=False)
            held.finish()

    def _is_started(self, found: Inventory) -> bool:
        """Whether the cluster is up from its current file."""
        name = self._cluster.name
        if found.state is ClusterState.DOUBLE:
            heads = ", ".join(one.name for one in found.heads)
            raise WrongStateError(f"Cluster {name} has more than one head ({heads}): stop it, and start it again.")
        if found.state is not ClusterState.UP:
            return False
        if found.heads[0].labels.get(CONFIG_LABEL) != self._config_hash:
            raise WrongStateError(
                f"Cluster {name} runs already, from another file than its current one: 'tradewind cluster "
                f"apply {name}' changes it while it runs, 'tradewind cluster restart {name}' ends what runs there."
            )
        self._tell(f"Cluster {name} was started already: {found.heads[0].name}.")
        return True

    def _check_state(self, found: Inventory, *states: ClusterState) -> None:
        if found.state not in states:
            advice = "stop it, and start it again" if found.state is ClusterState.DOUBLE else "start it"
            raise WrongStateError(f"Cluster {self._cluster.name}: {found.state.value}: {advice}. Nothing was changed.")

    def _prepare(self, found: Inventory, held: HeldClusterLock) -> None:
        """Delete dead heads, and create the state disk if it is missing."""
        zone = self._zone.under(held.check)
        if found.dead_heads:
            zone.delete_machines(found.dead_heads)
            self._tell(f"Deleted {', '.join(one.name for one in found.dead_heads)}, which did not run any more.")
        if zone.make_disk(self._cluster):
            self._tell(f"Made disk {self._cluster.state_disk}.")

    def _launch(self, held: HeldClusterLock, *, is_restart: bool = True) -> None:
        """Run the launcher, then label an existing head with the hash of the file that it follows from now on."""
        held.check()
        self._launcher.up(held, is_restart=is_restart)
        (head,) = self.inventory().heads
        if head.labels.get(CONFIG_LABEL) != self._config_hash:
            self._zone.under(held.check).label_machine(head.name, {CONFIG_LABEL: self._config_hash})


@contextmanager
def _finished_if_refused(held: HeldClusterLock) -> Iterator[None]:
    """Finish a refused operation, so that it does not block other commands."""
    try:
        yield
    except (WrongStateError, RelaunchRefusedError):
        held.finish()
        raise


def delete_nodes(zone: CloudZone, cluster: str, tell: Callable[[str], None], *, include_reserved: bool) -> None:
    """Delete a cluster's resources, and list again, until nothing is left to delete.

    Raises:
        CloudError: Google Cloud refuses, or does not answer.
    """
    while not (plan := Teardown.of(zone.inventory().of(cluster), include_reserved=include_reserved)).is_empty:
        if plan.machines:
            zone.delete_machines(plan.machines)
            tell(f"Deleted {', '.join(one.name for one in plan.machines)}.")
        zone.delete_slices(plan.slices, plan.queues, lambda name: tell(f"Deleted {name}."))


def cluster_file(cluster: FleetCluster, fleet: Fleet) -> Path:
    """Return the path of the cluster's file for Ray's launcher."""
    return fleet.file.parent / CLUSTERS_FOLDER / f"{cluster.name}.yaml"


def config_hash(cluster: FleetCluster, fleet: Fleet, *, must_be_fresh: bool = True) -> str:
    """Return the hash in the cluster's file.

    Raises:
        FleetError: The file does not match the fleet file.
    """
    import yaml  # type: ignore[import-untyped]

    file, files = cluster_file(cluster, fleet), GeneratedFiles.of(fleet)
    if must_be_fresh and file in files.stale:
        raise FleetError(f"{file} does not match {fleet.file}: run 'tradewind cluster update-configs' first.")
    return str(yaml.safe_load(files.texts[file])["provider"]["labels"][CONFIG_LABEL])


def written_config_hash(cluster: FleetCluster, fleet: Fleet) -> str | None:
    """Return the hash in the cluster's file as it was last generated; None without one.

    Unlike ``config_hash`` it renders no template, which limits the memory of the whole process meanwhile.
    """
    content = read_contents([str(cluster_file(cluster, fleet))], SMALL).values()
    found = _CONFIG_HASH.search(next(iter(content)).text) if content else None
    return found[1] if found else None


def cluster_manager(
    cluster: FleetCluster,
    fleet: Fleet,
    tell: Callable[[str], None],
    echo: Callable[[str], None],
    *,
    must_be_fresh: bool = True,
) -> ClusterManager:
    """Return the manager of a cluster of the fleet.

    Args:
        tell: Called with a sentence for each action.
        echo: Called with each line that Ray's launcher prints.

    Raises:
        FleetError: Its file does not match the fleet file, or there is no client for Google Cloud.
    """
    return ClusterManager(
        cluster,
        config_hash(cluster, fleet, must_be_fresh=must_be_fresh),
        zone=CloudZone(cluster.project, cluster.zone),
        marker=ClusterLock.of(cluster),
        launcher=RayLauncher(cluster_file(cluster, fleet), echo),
        tell=tell,
    )
