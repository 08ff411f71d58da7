"""A real head's own autoscaler with Tradewind's provider deletes no slice of real Ray nodes that works."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fleet.autoscaled import POD, resolved
from tests.fleet.clouds import PROJECT, ZONE, add_head, running_google
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
class Environment:
    """A head and its autoscaler's cloud.

    Attributes:
        polled_at: When the autoscaler last listed the slices.
    """

    ray: AutoscaledHead
    google: LocalGoogle
    config: dict[str, Any]
    polled_at: float = 0.0

    def note_poll(self, call: HttpRequest) -> None:
        if call.method == "GET" and call.path.endswith("/nodes"):
            self.polled_at = time.monotonic()

    def want(self, least: int) -> None:
        """Set the minimum number of slices of two hosts (0 or 1); the autoscaler rereads its file each round."""
        self.config["available_node_types"][POD] |= {"min_workers": least, "max_workers": 1}
        written = self.ray.config.with_suffix(".new")
        written.write_text(json.dumps(self.config))  # JSON is YAML
        written.rename(self.ray.config)

    def slices(self) -> dict[str, str]:
        return {name: held.node.state.name for name, held in self.google.slices().items()}


@pytest.fixture
def environment(config: dict[str, Any], tmp_path: Path) -> Iterator[Environment]:
    env = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "0"}
    ray = AutoscaledHead(LocalStack(tmp_path), token="", num_cpus=1, env=env)
    ray.config = tmp_path / "autoscaling.yaml"
    metadata = MetadataServer(PROJECT, ZONE)
    metadata.start()
    try:
        with running_google("COMPUTE", "TPU", hosts=RayHosts(ray, metadata, dict)) as google:
            add_head(google, "us-central2", ip=ray.head_ip, ray_user_node_type="head_default")
            config["idle_timeout_minutes"] = IDLE_S / 60
            environment = Environment(ray, google, resolved(config, tmp_path))
            google.seen = environment.note_poll
            environment.want(1)
            ray.start()
            yield environment
            ray.stop()
    finally:
        ray.stack.stop()  # also of a slice that was starting
        metadata.stop()


def test_slice_stays_while_host_1_is_busy_and_goes_when_idle(environment: Environment) -> None:
    until(lambda: list(environment.slices().values()) == ["READY"], "the slice")
    before = environment.slices()
    jobs = RayJobs(RayCluster("here", environment.ray.address))
    stop = environment.ray.config.with_name("stop")
    began = stop.with_name("began")
    work = f"touch {began}; until [ -e {stop} ]; do sleep 0.1; done"
    on_host_1 = {"ray.io/tpu-worker-id": "1"}
    jobs.submit_or_attach(JobRequest("works", work, resources={"TPU": 4}, label_selector=on_host_1))
    until(began.exists, "the job")
    environment.want(0)
    since = time.monotonic()
    until(lambda: environment.polled_at > since + 2 * IDLE_S, "polls for twice the idle timeout")
    assert environment.slices() == before
    details = jobs.details("works")
    assert details is not None and details.status == "RUNNING"
    stop.touch()
    until(lambda: environment.slices() == {}, "the slice to be deleted")
