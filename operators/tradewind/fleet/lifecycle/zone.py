"""One zone of a project, as far as clusters live in it: what there is, and how it goes away."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

from tradewind.cloud_tpu.api import AT_ONCE, TpuApi
from tradewind.cloud_tpu.errors import TpuApiError, TpuDeniedError, TpuUnreachableError
from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode
from tradewind.fleet.cloud.google_api import (
    CloudConflictError,
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudUnreachableError,
    answer_of,
    google_api,
    pages_of,
)
from tradewind.fleet.clusters import CLUSTER_LABEL, FleetCluster
from tradewind.fleet.lifecycle.inventory import Inventory, VirtualMachine

_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
_OPERATION_S: Final = 15 * 60.0
_DISK_GB: Final = 200
_DISK_TYPE: Final = "pd-balanced"


class CloudZone:
    """A zone of a project.

    Args:
        compute: The client of Compute Engine; default: one of this machine's credentials.
        tpu: That of Cloud TPU.
        sleep: Waits.

    Raises (every method):
        CloudError: Google Cloud refuses, or does not answer.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        *,
        compute: Any = None,
        tpu: TpuApi | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.project = project
        self.zone = zone
        self._compute = compute or google_api("compute")
        self._sleep = sleep
        self._nodes: Any = None
        self._check: Callable[[], None] = lambda: None
        with in_fleet_words():
            self._tpu = tpu or TpuApi(project, zone, poll_s=2.0)

    def under(self, check: Callable[[], None]) -> CloudZone:
        """The same zone, of which nothing is changed any more once ``check`` raises; it is asked before each change."""
        other = copy.copy(self)
        other._check = check
        return other

    def inventory(self) -> Inventory:
        """Everything in it that Ray, or somebody for Ray, has made."""
        listed = self._compute.instances().list
        query = {"project": self.project, "zone": self.zone, "filter": f"labels.{CLUSTER_LABEL}:*"}
        machines = [
            VirtualMachine.from_json(one) for one in pages_of(listed, f"The machines of {self}", "items", **query)
        ]
        with in_fleet_words():
            return Inventory(machines, self._tpu.nodes(), self._tpu.queued_resources())

    def delete_machines(self, machines: Sequence[VirtualMachine]) -> None:
        """Returns when all of them are gone."""
        instances = self._compute.instances()
        begun = []
        for machine in machines:
            what = f"Deleting {machine.name} in {self}"
            try:
                request = instances.delete(project=self.project, zone=self.zone, instance=machine.name)
                begun.append((what, self._changed(request, what)))
            except CloudNotFoundError:
                continue
        for what, operation in begun:
            self._wait_for(operation, what)

    def delete_slices(
        self, slices: Sequence[TpuNode], queues: Sequence[QueuedTpu], gone: Callable[[str], None]
    ) -> None:
        """Returns when all of them are gone, each of which is told to ``gone``."""

        def delete(one: TpuNode | QueuedTpu) -> None:
            is_queue = isinstance(one, QueuedTpu)
            delete_one = self._tpu.delete_queued_resource if is_queue else self._tpu.delete_node
            delete_one(one.name, one.identity, check=self._check)
            gone(one.name)

        with in_fleet_words(self._check), ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(delete, [*slices, *queues]))

    def make_disk(self, cluster: FleetCluster) -> bool:
        """Have the state disk of ``cluster``; whether it had to be made."""
        disks, what = self._compute.disks(), f"Making disk {cluster.state_disk} in {self}"
        place = {"project": self.project, "zone": self.zone}
        try:
            answer_of(disks.get(**place, disk=cluster.state_disk), f"Disk {cluster.state_disk} in {self}")
            return False
        except CloudNotFoundError:
            pass
        body = {
            "name": cluster.state_disk, "sizeGb": str(_DISK_GB), "labels": {CLUSTER_LABEL: cluster.name},
            "type": f"projects/{self.project}/zones/{self.zone}/diskTypes/{_DISK_TYPE}",
        }  # fmt: skip
        try:
            self._wait_for(self._changed(disks.insert(**place, body=body), what), what)
        except CloudConflictError:
            return False
        return True

    def delete_disk(self, name: str) -> None:
        """Returns when it is gone."""
        what = f"Deleting disk {name} in {self}"
        try:
            request = self._compute.disks().delete(project=self.project, zone=self.zone, disk=name)
            self._wait_for(self._changed(request, what), what)
        except CloudNotFoundError:
            return

    def label_machine(self, name: str, labels: Mapping[str, str]) -> None:
        """Add ``labels`` to those of a machine."""
        instances, what = self._compute.instances(), f"Labelling {name} in {self}"
        place = {"project": self.project, "zone": self.zone, "instance": name}
        there = answer_of(instances.get(**place), what)
        body = {"labels": {**there.get("labels", {}), **labels}, "labelFingerprint": there["labelFingerprint"]}
        self._wait_for(self._changed(instances.setLabels(**place, body=body), what), what)

    def label_slice(self, one: TpuNode, labels: Mapping[str, str]) -> None:
        """Add ``labels`` to those that a slice has by now; nothing if it is gone, or another one has its name.

        Google takes all labels of a slice at once, and knows no condition for that, so they are read just before.
        """
        self._nodes = self._nodes or google_api("tpu").projects().locations().nodes()
        name = f"projects/{self.project}/locations/{self.zone}/nodes/{one.name}"
        what = f"Labelling {one.name} in {self}"
        with suppress(CloudNotFoundError):
            there = TpuNode.from_json(answer_of(self._nodes.get(name=name), what))
            if there.identity == one.identity:
                body = {"labels": {**there.labels, **labels}}
                self._changed(self._nodes.patch(name=name, updateMask="labels", body=body), what)

    def __str__(self) -> str:
        return f"{self.project}, {self.zone}"

    def _changed(self, request: Any, what: str) -> Mapping[str, Any]:
        self._check()
        return answer_of(request, what, is_write=True)

    def _wait_for(self, operation: Mapping[str, Any], what: str) -> None:
        operations, place = self._compute.zoneOperations(), {"project": self.project, "zone": self.zone}
        deadline, pause = time.monotonic() + _OPERATION_S, _FIRST_PAUSE_S
        while operation.get("status") != "DONE":
            if time.monotonic() > deadline:
                raise CloudUnreachableError(f"{what}: it is not done after {_OPERATION_S / 60:.0f} min: look at it.")
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            operation = answer_of(operations.get(operation=operation["name"], **place), what)
        if error := operation.get("error"):
            raise CloudError(f"{what}: {error['errors'][0]['message']}")


@contextmanager
def in_fleet_words(check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """The errors of the Cloud TPU API as errors of the fleet; before that what ``check`` raises, which may be why."""
    try:
        yield
    except TpuDeniedError as error:
        raise CloudDeniedError(str(error)) from None
    except TpuUnreachableError as error:
        raise CloudUnreachableError(str(error)) from None
    except TpuApiError as error:
        check()
        raise CloudError(str(error)) from None
