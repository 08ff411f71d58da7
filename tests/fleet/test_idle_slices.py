"""A real head whose own autoscaler uses Tradewind's provider, and slices of real Ray nodes.

The autoscaler deletes no slice that works.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fleet.autoscaled import POD, put_head, resolved
from tests.support.google import LocalGoogle
from tests.support.waiting import until
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.cloud.loopback_server import HttpRequest
from tradewind.rehearsal.cloud.metadata_server import MetadataServer
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.rehearsal.tpu.hosts import RayHosts

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PLACE: Final = ("my-project", "us-central2-b")
IDLE_S: Final = 10.0
"""The autoscaler's idle timeout for a slice."""


class AutoscaledHead(LocalRay):
    """A head that starts its autoscaler with the file ``config``."""

    config: Path

    @property
    def head_ip(self) -> str:
        return self.gcs_address.partition(":")[0]

    def _start_node(
        self, name: str, stack: LocalStack, ip: str, options: Sequence[str], env: Mapping[str, str]
    ) -> None:
        more = [f"--autoscaling-config={self.config}"] if name == "head" else []
        super()._start_node(name, stack, ip, [*options, *more], env)


@dataclass
class World:
    """Test environment: a head and its autoscaler's cloud.

    Attributes:
        looks: Times at which the autoscaler has listed the slices.
    """

    ray: AutoscaledHead
    google: LocalGoogle
    config: dict[str, Any]
    looks: list[float]

    def want(self, least: int) -> None:
        """Set the minimum number of slices of two hosts (0 or 1); the autoscaler rereads its file each round."""
        self.config["available_node_types"][POD] |= {"min_workers": least, "max_workers": 1}
        written = self.ray.config.with_suffix(".new")
        written.write_text(json.dumps(self.config))  # JSON is YAML
        written.rename(self.ray.config)

    def slices(self) -> dict[str, str]:
        return {name: held.node.state.name for name, held in self.google.slices().items()}


@pytest.fixture
def world(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    env = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "0"}
    ray = AutoscaledHead(LocalStack(tmp_path), token="", num_cpus=1, env=env)
    ray.config = tmp_path / "autoscaling.yaml"
    metadata = MetadataServer(*PLACE)
    google = LocalGoogle(PLACE, hosts=RayHosts(ray, metadata, dict))
    for server in (metadata, google):
        server.start()
    try:
        for api in ("COMPUTE", "TPU"):
            monkeypatch.setenv(f"TRADEWIND_{api}_ENDPOINT", google.url)
        put_head(google, ray.head_ip)
        config["idle_timeout_minutes"] = IDLE_S / 60
        made = World(ray, google, resolved(config, tmp_path), [])
        google.seen = lambda call: made.looks.append(time.monotonic()) if is_list(call) else None
        made.want(1)
        ray.start()
        yield made
    finally:
        ray.stop()
        google.end_all()
        ray.stack.stop()  # of a slice that was starting
        for server in (google, metadata):
            server.stop()


def is_list(call: HttpRequest) -> bool:
    return call.method == "GET" and call.path.endswith("/nodes")


def test_slice_stays_while_host_1_is_busy_and_goes_when_idle(world: World) -> None:
    until(lambda: list(world.slices().values()) == ["READY"], "the slice")
    before = world.slices()
    jobs = RayJobs(RayCluster("here", world.ray.address))
    stop = world.ray.config.with_name("stop")
    began = stop.with_name("began")
    work = f"touch {began}; until [ -e {stop} ]; do sleep 0.1; done"
    on_host_1 = {"ray.io/tpu-worker-id": "1"}
    jobs.submit_or_attach(JobRequest("works", work, resources={"TPU": 4}, label_selector=on_host_1))
    until(began.exists, "the job")
    world.want(0)
    since = time.monotonic()
    until(lambda: world.looks[-1] > since + 2 * IDLE_S, "the autoscaler to look twice as long as it waits")
    assert world.slices() == before
    details = jobs.details("works")
    assert details is not None and details.status == "RUNNING"
    stop.touch()
    until(lambda: world.slices() == {}, "the slice to be deleted")
