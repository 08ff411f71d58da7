"""Ray's provider in Tradewind's version.

It labels the nodes that it creates, requests only what it may see, and writes nothing to the project.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import ClickException
from google.cloud.tpu_v2 import types
from ray.autoscaler._private.commands import _bootstrap_config, _set_up_config_for_head_node
from ray.autoscaler._private.providers import _get_node_provider_cls
from ray.autoscaler.node_launch_exception import NodeLaunchException

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


def test_the_cluster_files_name_a_class_that_ray_finds(config: dict[str, Any]) -> None:
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


def test_the_bootstrap_only_looks_for_a_subnet(requests: list[HttpRequest], config: dict[str, Any]) -> None:
    resolved = TradewindNodeProvider.bootstrap_config(config)
    path = "/compute/v1/projects/my-project/regions/us-central2/subnetworks"
    assert [(call.method, call.path) for call in requests] == [("GET", path)]
    assert resolved["provider"]["_has_tpus"] is True and resolved["provider"]["idle_timeout_minutes"] == 5
    types = resolved["available_node_types"]
    assert types["tpu_worker"]["node_config"]["networkConfig"] == {"subnetwork": SUBNET}
    assert types["head_default"]["node_config"]["networkInterfaces"][0]["subnetwork"] == SUBNET
    assert "head_node" not in resolved and resolved["auth"] == config["auth"]


@pytest.mark.parametrize(
    ("taken", "says"),
    [
        (("auth", "ssh_private_key"), "auth.ssh_private_key is missing"),
        (("available_node_types", "head_default", "node_config", "serviceAccounts"), "head_default names no service"),
        (("available_node_types", "tpu_worker", "node_config", "serviceAccount"), "tpu_worker names no service"),
    ],
)  # fmt: skip
def test_what_ray_would_make_by_itself_is_refused(
    taken: tuple[str, ...], says: str, requests: list[HttpRequest], config: dict[str, Any]
) -> None:
    *above, last = taken
    table = config
    for name in above:
        table = table[name]
    del table[last]
    with pytest.raises(FleetError, match=says):
        TradewindNodeProvider.bootstrap_config(config)
    assert requests == []


@pytest.mark.parametrize("node_type", ["head_default", "tpu_worker"])
def test_every_node_is_created_with_the_hash_of_its_file(
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


# ---- differences from Ray's own provider


def make_slices(provider: TradewindNodeProvider, config: dict[str, Any], count: int) -> list[str]:
    """Create ``count`` workers and return their names."""
    node_config = config["available_node_types"]["tpu_worker"]["node_config"]
    return sorted(provider.create_node(copy.deepcopy(node_config), WORKER, count))


def set_state(google: LocalGoogle, name: str, state: types.Node.State) -> None:
    place = google.tpu["my-project", "us-central2-b"].service.state
    with place.changed:
        place.set_state(place.nodes[f"projects/my-project/locations/us-central2-b/nodes/{name}"], state)


def test_slices_of_all_pages_are_seen(
    google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tradewind.fleet.provider_google._PAGE", 2)
    made = make_slices(provider, config, 5)
    found = provider.non_terminated_nodes({})
    assert sorted(name.rpartition("/")[2] for name in found) == made


def test_a_slice_that_people_added_is_none_of_the_autoscalers(
    provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    body = copy.deepcopy(config["available_node_types"]["tpu_worker"]["node_config"])
    provider.create_node(body, {**WORKER, "ray-node-type": "unmanaged"}, 1)
    assert provider.non_terminated_nodes({}) == []


@pytest.mark.parametrize("state", [NodeState.REPAIRING, NodeState.REIMAGING])
def test_a_slice_that_google_mends_is_not_lost_and_not_ready(
    state: types.Node.State, google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    (name,) = make_slices(provider, config, 1)
    set_state(google, name, state)
    (found,) = provider.non_terminated_nodes({"ray-node-type": "worker"})
    assert not provider.is_running(found) and not provider.is_terminated(found)


def test_only_own_preempted_slices_are_deleted_before_create(
    google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    dead, living = make_slices(provider, config, 2)
    neighbour = TradewindNodeProvider(provider.provider_config, "us-central2-staging")
    (foreign,) = make_slices(neighbour, config, 1)
    (of_other_type,) = provider.create_node(
        copy.deepcopy(config["available_node_types"]["tpu_slice_v4_16"]["node_config"]),
        {**WORKER, "ray-user-node-type": "tpu_slice_v4_16"}, 1,
    )  # fmt: skip
    for name in (dead, foreign, of_other_type):
        set_state(google, name, NodeState.PREEMPTED)
    assert [name.rpartition("/")[2] for name in provider.non_terminated_nodes({})] == [living]
    (new,) = make_slices(provider, config, 1)
    left = {living, foreign, of_other_type, new}
    place = google.tpu["my-project", "us-central2-b"].service.state
    with place.changed:
        assert place.changed.wait_for(lambda: google.slices().keys() == left, timeout=20)


def test_who_vanishes_between_two_looks_is_gone_and_no_error(
    google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    (name,) = make_slices(provider, config, 1)
    (found,) = provider.non_terminated_nodes({})
    place = google.tpu["my-project", "us-central2-b"].service.state
    with place.changed:
        place.drop(place.nodes[found])
    provider.cached_nodes.clear()
    assert provider.is_terminated(found) and not provider.is_running(found)
    assert provider.internal_ip(found) is None and provider.node_tags(found) == {}
    gone = "ray-us-central2-head-00000000-compute"
    assert provider.is_terminated(gone) and provider.external_ip(gone) is None
    provider.terminate_node(found)
    for vanished in (found, gone):
        provider.set_node_tags(vanished, {"ray-node-status": "update-failed"})


def test_a_slice_that_vanishes_while_it_is_labelled_is_no_error(
    google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    (name,) = make_slices(provider, config, 1)
    (found,) = provider.non_terminated_nodes({})
    place = google.tpu["my-project", "us-central2-b"].service.state

    def drop_it_first(call: HttpRequest) -> None:
        if call.method == "PATCH":
            with place.changed:
                place.drop(place.nodes[found])

    google.seen = drop_it_first
    provider.set_node_tags(found, {"ray-node-status": "setting-up"})
    assert google.slices() == {}


def test_node_labels_written_by_others_after_listing_survive(
    google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    make_slices(provider, config, 1)
    (found,) = provider.non_terminated_nodes({})
    place = google.tpu["my-project", "us-central2-b"].service.state

    def write_meanwhile(call: HttpRequest) -> None:
        if not call.path.endswith(("/instances", "/nodes")):  # lists are allowed
            google.seen = lambda call: None
            with place.changed:
                place.nodes[found].node.labels["theirs"] = "1"

    google.seen = write_meanwhile
    provider.set_node_tags(found, {"ray-node-status": "setting-up"})
    assert {"theirs": "1", "ray-node-status": "setting-up"}.items() <= dict(place.nodes[found].node.labels).items()


def test_what_takes_google_long_keeps_nobody_from_looking(
    google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    looks = []

    def look_meanwhile(call: HttpRequest) -> None:
        if "/operations/" in call.path or call.method == "PATCH":
            looks.append(provider.lock.acquire(blocking=False))
            if looks[-1]:
                provider.lock.release()

    google.seen = look_meanwhile
    make_slices(provider, config, 1)
    assert looks and all(looks), "another thread could take the lock meanwhile"
    looks.clear()
    (found,) = provider.non_terminated_nodes({})
    provider.set_node_tags(found, {"ray-node-status": "up-to-date"})
    assert looks and all(looks)
    assert provider.node_tags(found)["ray-node-type"] == "worker", "the others stay"


def test_what_google_refuses_is_said_in_its_words(
    google: LocalGoogle, provider: TradewindNodeProvider, config: dict[str, Any]
) -> None:
    types_ = config["available_node_types"]
    google.compute.state.faults.quota = 0
    with pytest.raises(ClickException, match=r"head could not be created: Quota 'CPUS' exceeded.  Limit: 0.0 in reg"):
        provider.create_node(copy.deepcopy(types_["head_default"]["node_config"]), HEAD_TAGS, 1)
    google.tpu["my-project", "us-central2-b"].service.state.supply.is_out = True
    with pytest.raises(NodeLaunchException, match="There is no more capacity in the zone"):
        make_slices(provider, config, 1)


def test_the_head_learns_by_which_command_it_reaches_the_slices(
    google: LocalGoogle, config: dict[str, Any], tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    key.write_text("key")
    config["auth"] |= {"ssh_proxy_command": "nc -x proxy %h %p", "ssh_private_key": str(key)}
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
