"""A loopback Cloud TPU without processes behind its nodes, and Ray's counts of their hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.waiting import until
from tradewind.cloud_tpu.api import TpuApi, TpuOperation
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.records import RepairLock, SliceRecords
from tradewind.cloud_tpu.repair.terms import RepairSettings, Scope
from tradewind.cloud_tpu.resources import node_names
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.state import NodeState, QueueState

BODY = {
    "acceleratorType": "v4-16",
    "runtimeVersion": "tpu-ubuntu2204-base",
    "labels": {"cluster": "one"},
    "metadata": {"startup-script": "start ray"},
    "schedulingConfig": {"spot": True},
}
AT_ONCE = RepairSettings(transition_grace_s=5.0, start_grace_s=0.0, host_grace_s=3.0, stock_out_pause_s=10.0)


def queued(*nodes: str, body: Mapping[str, Any] = BODY, **fields: Any) -> dict[str, Any]:
    """Return the body of a queued resource for these nodes."""
    return {"tpu": {"nodeSpec": [{"nodeId": node, "node": dict(body)} for node in nodes]}, "spot": {}, **fields}


C = TypeVar("C", bound=LocalTpuCloud)


@contextmanager
def serving(cloud: C) -> Iterator[C]:
    cloud.start()
    try:
        yield cloud
    finally:
        cloud.service.lives.end_all()
        cloud.stop()


class MortalApi(TpuApi):
    """A client that raises around an action, like a killed process: at the ``lives``-th moment before or after one."""

    lives: int | None = None

    def begin_delete(self, *args: Any, **options: Any) -> TpuOperation | None:
        return self._around(lambda: TpuApi.begin_delete(self, *args, **options))

    def begin_create(self, name: str, body: Any) -> TpuOperation:
        return self._around(lambda: TpuApi.begin_create(self, name, body))

    def _around(self, call: Any) -> Any:
        self._lose_life()
        operation = call()
        self._lose_life()
        return operation

    def _lose_life(self) -> None:
        if self.lives is not None:
            self.lives -= 1
            if self.lives <= 0:
                raise KeyboardInterrupt


class TpuEnvironment:
    """Test environment: the cloud, the repair's clock and Ray.

    Ray counts the hosts of every READY node, except the lost hosts.
    """

    def __init__(self, cloud: LocalTpuCloud, folder: Path) -> None:
        self.cloud = cloud
        self.api = self.new_api()
        self.folder = folder
        self.now = time.time()
        self.lost_hosts: dict[str, int] = {}
        self.ray_answers = True

    def new_api(self, kind: type[TpuApi] = TpuApi, **options: Any) -> Any:
        given = {"endpoint": self.cloud.url, "poll_s": 0.01, "retry_timeout_s": 5.0, "sleep": self._sleep, **options}
        return kind("rehearsal", "us-central2-b", **given)

    def mortal_api(self, lives: int | None) -> MortalApi:
        api: MortalApi = self.new_api(MortalApi)
        api.lives = lives
        return api

    def _sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))

    def hosts(self) -> dict[str, int] | None:
        if not self.ray_answers:
            return None
        ready = (node for node in self.api.nodes() if node.state == "READY")
        return {node.name: (node.hosts or 0) - self.lost_hosts.get(node.name, 0) for node in ready}

    def repair(self, scope: Scope | None = None, settings: RepairSettings = AT_ONCE, **options: Any) -> SliceRepair:
        return SliceRepair(
            options.pop("api", self.api),
            self.hosts,
            scope or Scope(labels={"cluster": "one"}),
            SliceRecords(str(self.folder)),
            settings,
            **{"clock": lambda: self.now, "lock": self.lock(), **options},
        )

    def repair_until_well(self, repair: SliceRepair | None = None, passes: int = 100) -> None:
        """Make passes until no further one would change anything; then every slice works."""
        repair = repair or self.repair()
        for _ in range(passes):
            report = repair.run_once()
            if report.is_over:
                break
            self.now += 1.0
        assert report.is_well, report.table()

    def lock(self, **times: float) -> RepairLock:
        """Return the folder's repair lock for one repair."""
        return RepairLock(str(self.folder / "turn"), **times)

    def create(self, name: str, body: Mapping[str, Any] = BODY) -> None:
        self.api.create(name, body)
        for node in node_names(name, body) or (name,):
            until(lambda node=node: self.api.wait_until_ready(node), f"{node} to be READY", pause_s=0.01)
        if "tpu" in body:
            until(lambda: self.api.queued_resource(name).state == "ACTIVE", f"{name} to be ACTIVE", pause_s=0.01)

    def create_preempted(self, *names: str) -> None:
        for name in names:
            self.create(name)
            self.preempt(name)

    def names(self) -> list[str]:
        return [node.name for node in self.api.nodes()]

    def preempt(self, name: str) -> None:
        """Set the node to PREEMPTED; with its last node, set its queued resource to SUSPENDED."""
        with self.cloud.service.state.changed:
            held = self._held(name)
            self.cloud.service.state.set_state(held, NodeState.PREEMPTED)
            if owner := held.node.queued_resource:
                one = self.cloud.service.state.queued[owner]
                self.cloud.service.state.set_queue_state(one, QueueState.SUSPENDED)

    def set_state(self, name: str, state: str) -> None:
        with self.cloud.service.state.changed:
            self.cloud.service.state.set_state(self._held(name), NodeState[state])

    def _held(self, name: str) -> Any:
        return self.cloud.service.state.node(f"{self.api.parent}/nodes/{name}")

    def calls(self, *names: str) -> list[str]:
        """Return the calls of these names that the cloud answered with OK, for example ``DeleteNode slice-a``."""
        answered = [one for one in self.cloud.service.log() if one["call"] in names and one["answer"] == "OK"]
        return [f"{one['call']} {one['about'].rpartition('/')[2]}" for one in answered]
