"""A cluster is started, stopped, restarted and changed: each under its marker, and each to be run again if it ended
before it was done.

What may be done is decided by what there is, read anew once the marker is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.inventory import (
    CONFIG_LABEL,
    NOT_SET_UP,
    READY,
    STATUS_LABEL,
    ClusterState,
    Inventory,
)
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.lifecycle.relaunch import ApplyPlan, RelaunchRefusedError, relaunched
from tradewind.fleet.lifecycle.teardown import Teardown
from tradewind.fleet.lifecycle.zone import CloudZone
from tradewind.fleet.marker import ClusterMarker, MarkerHolding


class WrongStateError(FleetError):
    """The cluster is not in a state in which this can be done."""


class OtherConfigError(WrongStateError):
    """The cluster runs, and was made from another file."""


class ClusterActs:
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
        marker: ClusterMarker,
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
            OtherConfigError: One is, from another file.
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

    def relaunch(self, held: MarkerHolding) -> None:
        """End Ray on the head, and start it again from the file as it is now; a head that is not there is made.

        Args:
            held: The marker, held for what this is a part of.
        """
        self._prepare(self.inventory(), held)
        self._launch(held)

    def set_slices_up_again(self, held: MarkerHolding) -> None:
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
            raise OtherConfigError(
                f"Cluster {name} runs already, from another file than the one that it has now: 'tradewind cluster "
                f"apply {name}' changes it while it runs, 'tradewind cluster restart {name}' ends what runs there."
            )
        self._tell(f"Cluster {name} was started already: {found.heads[0].name}.")
        return True

    def _want(self, found: Inventory, *states: ClusterState) -> None:
        if found.state not in states:
            advice = "stop it, and start it again" if found.state is ClusterState.DOUBLE else "start it"
            raise WrongStateError(f"Cluster {self._cluster.name}: {found.state.value}: {advice}. Nothing was changed.")

    def _prepare(self, found: Inventory, held: MarkerHolding) -> None:
        """Nothing is in the head's way, and what it needs is there."""
        zone = self._zone.under(held.check)
        if found.dead_heads:
            zone.delete_machines(found.dead_heads)
            self._tell(f"Deleted {', '.join(one.name for one in found.dead_heads)}, which did not run any more.")
        if zone.make_disk(self._cluster):
            self._tell(f"Made disk {self._cluster.state_disk}.")

    def _launch(self, held: MarkerHolding, *, is_restart: bool = True) -> None:
        """A head that was made earlier gets the hash of the file that it follows from now on, as its label."""
        held.check()
        self._launcher.up(held, is_restart=is_restart)
        (head,) = self.inventory().heads
        if head.labels.get(CONFIG_LABEL) != self._config_hash:
            self._zone.under(held.check).label_machine(head.name, {CONFIG_LABEL: self._config_hash})


@contextmanager
def _over_if_refused(held: MarkerHolding) -> Iterator[None]:
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
