"""Ray's provider in Tradewind's version: its labels, its requests to Google, its view of slices."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import ClickException
from google.cloud.tpu_v2 import types
from ray.autoscaler._private.commands import _bootstrap_config, _set_up_config_for_head_node
from ray.autoscaler._private.providers import _get_node_provider_cls
from ray.autoscaler.node_launch_exception import NodeLaunchException

from tests.fleet.clouds import PROJECT, ZONE
from tests.fleet.fleets import SHIPPED
from tests.support.google import LocalGoogle
from tradewind.fleet.errors import FleetError
from tradewind.fleet.provider import TradewindNodeProvider
from tradewind.rehearsal.cloud.loopback_server import HttpRequest
from tradewind.rehearsal.tpu.state import NodeState

pytestmark = pytest.mark.slow

SUBNET = "https://www.googleapis.com/compute/v1/projects/my-project/regions/us-central2/subnetworks/default"
WORKER = {"ray-node-name": "ray-us-central2-worker", "ray-node-type": "worker", "ray-user-node-type": "tpu_worker"}
HEAD_TAGS = {"ray-node-name": "ray-us-central2-head", "ray-node-type": "head", "ray-user-node-type": "head_default"}


@pytest.fixture
def requests(google: LocalGoogle) -> list[HttpRequest]:
    """Return the requests to Google."""
    seen: list[HttpRequest] = []
    google.seen = seen.append
    return seen


def test_ray_finds_the_class_named_in_cluster_files(config: dict[str, Any]) -> None:
    assert _get_node_provider_cls(config["provider"]) is TradewindNodeProvider
    filled = TradewindNodeProvider.fillout_available_node_types_resources(config)
    assert filled["available_node_types"]["tpu_slice_v4_16"]["resources"]["TPU-v4-16-head"] == 1


def test_ray_launcher_resolves_cluster_file_without_leftovers(
    requests: list[HttpRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a cache there would be readable by all
    written = yaml.safe_load((SHIPPED.parent / "clusters" / "us-east5-b-vllm.yaml").read_text())
    resolved = _bootstrap_config(written, no_config_cache=True)
    assert [call.method for call in requests] == ["GET"] and list(tmp_path.iterdir()) == []
    assert resolved["available_node_types"]["tpu_worker"]["resources"] == {"CPU": 120, "TPU": 8, "TPU-v6e-8-head": 1}
    assert resolved["head_setup_commands"] == [] and resolved["provider"]["type"] == "external"


def test_bootstrap_requests_only_the_subnet(requests: list[HttpRequest], config: dict[str, Any]) -> None:
    resolved = TradewindNodeProvider.bootstrap_config(config)
    path = "/compute/v1/projects/my-project/regions/us-central2/subnetworks"
    assert [(call.method, call.path) for call in requests] == [("GET", path)]
    assert resolved["provider"]["_has_tpus"] is True and resolved["provider"]["idle_timeout_minutes"] == 5
    types = resolved["available_node_types"]
    assert types["tpu_worker"]["node_config"]["networkConfig"] == {"subnetwork": SUBNET}
    assert types["head_default"]["node_config"]["networkInterfaces"][0]["subnetwork"] == SUBNET
    assert "head_node" not in resolved and resolved["auth"] == config["auth"]


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (("auth", "ssh_private_key"), "auth.ssh_private_key is missing"),
        (("available_node_types", "head_default", "node_config", "serviceAccounts"), "head_default names no service"),
        (("available_node_types", "tpu_worker", "node_config", "serviceAccount"), "tpu_worker names no service"),
    ],
)  # fmt: skip
def test_file_is_refused_where_ray_would_create_credentials(
    missing: tuple[str, ...], says: str, requests: list[HttpRequest], config: dict[str, Any]
) -> None:
    *above, last = missing
    table = config
    for name in above:
        table = table[name]
    del table[last]
    with pytest.raises(FleetError, match=says):
        TradewindNodeProvider.bootstrap_config(config)
    assert requests == []


@pytest.mark.parametrize("node_type", ["head_default", "tpu_worker"])
def test_every_node_is_labelled_with_the_hash_of_its_file(
    node_type: str, requests: list[HttpRequest], provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    node_config = config["available_node_types"][node_type]["node_config"]
    tags = HEAD_TAGS if node_type == "head_default" else WORKER
    provider.create_node(copy.deepcopy(node_config), tags, 1)
    (body,) = (json.loads(call.body) for call in requests if call.method == "POST")
    own = {"tradewind-config": config["provider"]["labels"]["tradewind-config"], "ray-cluster-name": "us-central2"}
    assert body["labels"] == {**tags, **own}
    account = json.dumps(body.get("serviceAccount") or body["serviceAccounts"])
    assert ("tradewind-head@" if node_type == "head_default" else "tradewind-worker@") in account


@dataclass
class Nodes:
    """The provider's nodes in the local cloud."""

    google: LocalGoogle
    provider: TradewindNodeProvider
    config: dict[str, Any]

    def create(
        self, count: int = 1, kind: str = "tpu_worker", by: TradewindNodeProvider | None = None, **tags: str
    ) -> list[str]:
        """Create ``count`` workers and return their names."""
        body = copy.deepcopy(self.config["available_node_types"][kind]["node_config"])
        named = {label.replace("_", "-"): value for label, value in tags.items()}
        return sorted((by or self.provider).create_node(body, {**WORKER, "ray-user-node-type": kind, **named}, count))

    def listed(self) -> list[str]:
        return list(self.provider.non_terminated_nodes({}))

    @contextmanager
    def state(self) -> Iterator[Any]:
        """Hold the lock of the zone's slices."""
        state = self.google.tpu[PROJECT, ZONE].service.state
        with state.changed:
            yield state

    def set_state(self, name: str, value: types.Node.State) -> None:
        with self.state() as state:
            state.set_state(state.nodes[f"projects/{PROJECT}/locations/{ZONE}/nodes/{name}"], value)

    def drop(self, path: str) -> None:
        with self.state() as state:
            state.drop(state.nodes[path])


@pytest.fixture
def nodes(google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]) -> Nodes:
    return Nodes(google, provider, config)


def test_slices_of_all_pages_but_no_manual_slices_are_listed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradewind.fleet.provider_google._PAGE", 2)
    created = nodes.create(5)
    nodes.create(ray_node_type="unmanaged")
    assert sorted(name.rpartition("/")[2] for name in nodes.listed()) == created


@pytest.mark.parametrize("state", [NodeState.REPAIRING, NodeState.REIMAGING])
def test_slice_under_repair_by_google_is_neither_lost_nor_ready(state: types.Node.State, nodes: Nodes) -> None:
    nodes.set_state(*nodes.create(), state)
    (node,) = nodes.provider.non_terminated_nodes({"ray-node-type": "worker"})
    assert not nodes.provider.is_running(node) and not nodes.provider.is_terminated(node)


def test_only_own_preempted_slices_are_deleted_before_create(nodes: Nodes) -> None:
    dead, living = nodes.create(2)
    (foreign,) = nodes.create(by=TradewindNodeProvider(nodes.provider.provider_config, "us-central2-staging"))
    (of_other_type,) = nodes.create(kind="tpu_slice_v4_16")
    for name in (dead, foreign, of_other_type):
        nodes.set_state(name, NodeState.PREEMPTED)
    assert [name.rpartition("/")[2] for name in nodes.listed()] == [living]
    (new,) = nodes.create()
    left = {living, foreign, of_other_type, new}
    with nodes.state() as state:
        assert state.changed.wait_for(lambda: nodes.google.slices().keys() == left, timeout=20)


def test_node_that_vanished_between_two_polls_is_terminated(nodes: Nodes) -> None:
    nodes.create()
    (node,) = nodes.listed()
    nodes.drop(node)
    provider = nodes.provider
    provider.cached_nodes.clear()
    assert provider.is_terminated(node) and not provider.is_running(node)
    assert provider.internal_ip(node) is None and provider.node_tags(node) == {}
    head = "ray-us-central2-head-00000000-compute"
    assert provider.is_terminated(head) and provider.external_ip(head) is None
    provider.terminate_node(node)
    for vanished in (node, head):
        provider.set_node_tags(vanished, {"ray-node-status": "update-failed"})


def test_slice_that_vanishes_while_labelled_is_no_error(nodes: Nodes) -> None:
    nodes.create()
    (node,) = nodes.listed()
    nodes.google.seen = lambda call: nodes.drop(node) if call.method == "PATCH" else None
    nodes.provider.set_node_tags(node, {"ray-node-status": "setting-up"})
    assert nodes.google.slices() == {}


def test_node_labels_written_by_others_after_listing_survive(nodes: Nodes) -> None:
    nodes.create()
    (node,) = nodes.listed()

    def write_meanwhile(call: HttpRequest) -> None:
        if not call.path.endswith(("/instances", "/nodes")):  # lists are allowed
            nodes.google.seen = lambda call: None
            with nodes.state() as state:
                state.nodes[node].node.labels["theirs"] = "1"

    nodes.google.seen = write_meanwhile
    nodes.provider.set_node_tags(node, {"ray-node-status": "setting-up"})
    with nodes.state() as state:
        assert {"theirs": "1", "ray-node-status": "setting-up"}.items() <= dict(state.nodes[node].node.labels).items()


def test_slow_requests_to_google_leave_the_lock_free(nodes: Nodes) -> None:
    was_free: list[bool] = []

    def try_lock(call: HttpRequest) -> None:
        if "/operations/" in call.path or call.method == "PATCH":
            was_free.append(nodes.provider.lock.acquire(blocking=False))
            if was_free[-1]:
                nodes.provider.lock.release()

    nodes.google.seen = try_lock
    nodes.create()
    assert was_free and all(was_free), "another thread could take the lock meanwhile"
    was_free.clear()
    (node,) = nodes.listed()
    nodes.provider.set_node_tags(node, {"ray-node-status": "up-to-date"})
    assert was_free and all(was_free)
    assert nodes.provider.node_tags(node)["ray-node-type"] == "worker", "the others stay"


def test_refusal_by_google_is_reported_in_its_words(nodes: Nodes) -> None:
    nodes.google.compute.state.faults.quota = 0
    head = copy.deepcopy(nodes.config["available_node_types"]["head_default"]["node_config"])
    with pytest.raises(ClickException, match=r"head could not be created: Quota 'CPUS' exceeded.  Limit: 0.0 in reg"):
        nodes.provider.create_node(head, HEAD_TAGS, 1)
    with nodes.state() as state:
        state.supply.is_out = True
    with pytest.raises(NodeLaunchException, match="There is no more capacity in the zone"):
        nodes.create()


def test_head_config_keeps_the_ssh_proxy_command(google: LocalGoogle, config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("key")
    config["auth"] |= {"ssh_proxy_command": "nc -x proxy %h %p", "ssh_private_key": str(tmp_path / "key.pem")}
    resolved = TradewindNodeProvider.bootstrap_config(config)
    provider = TradewindNodeProvider(resolved["provider"], "us-central2")
    _, file = _set_up_config_for_head_node(resolved, provider, False)
    assert json.loads(Path(file.name).read_text())["auth"]["ssh_proxy_command"] == "nc -x proxy %h %p"


def test_invalid_endpoint_is_refused_before_any_request(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRADEWIND_COMPUTE_ENDPOINT", "http://compute.example")
    with pytest.raises(FleetError, match="TRADEWIND_COMPUTE_ENDPOINT must be https://HOST"):
        TradewindNodeProvider.bootstrap_config(config)
