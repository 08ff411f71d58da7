"""The local Cloud TPU API, through Google's own clients over REST and gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import requests
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from tests.support.waiting import limit_s
from tradewind.rehearsal.tpu.cloud import LocalTpuCloud
from tradewind.rehearsal.tpu.grpc import TpuGrpcServer
from tradewind.rehearsal.tpu.hosts import HostsError, NullHosts, SliceMetadata

PARENT = "projects/rehearsal/locations/us-central2-b"
SECONDS = limit_s()


class HeldBackHosts(NullHosts):
    """Hosts that start when a test allows it, or never."""

    def __init__(self) -> None:
        self.may_start = threading.Event()
        self.may_start.set()
        self.is_starting = threading.Event()
        self.problem = ""
        self.killed: list[str] = []

    def start(self, facts: SliceMetadata) -> list[str]:
        self.is_starting.set()
        assert self.may_start.wait(SECONDS)
        if self.problem:
            raise HostsError(self.problem)
        return super().start(facts)

    def kill(self, name: str) -> None:
        self.killed.append(name)


@dataclass
class World:
    """One cloud and its client."""

    cloud: LocalTpuCloud
    calls: TpuGrpcServer
    hosts: HeldBackHosts
    client: tpu_v2.TpuClient

    def create(self, name: str, kind: str = "v4-8", **fields: Any) -> Any:
        node = tpu_v2.Node(accelerator_type=kind, runtime_version="tpu-vm", **fields)
        return self.client.create_node(parent=PARENT, node_id=name, node=node)

    def queue(self, name: str, *specs: dict[str, Any]) -> Any:
        body = {"tpu": {"node_spec": [{"node": node_fields(), **spec} for spec in specs]}, "spot": {}}
        made = self.client.create_queued_resource(parent=PARENT, queued_resource_id=name, queued_resource=body)
        return made.result(timeout=SECONDS)

    def nodes(self, **options: Any) -> list[tpu_v2.Node]:
        return list(self.client.list_nodes(request={"parent": PARENT, **options}))

    def wait_for_queue(self, name: str, state: str) -> None:
        changed, queued = self.cloud.service.state.changed, self.cloud.service.state.queued
        full = f"{PARENT}/queuedResources/{name}"
        with changed:
            assert changed.wait_for(lambda: queued[full].state.state.name == state, SECONDS), queued[full].state
        assert self.client.get_queued_resource(name=full).state.state.name == state


def node_fields(kind: str = "v4-8") -> dict[str, Any]:
    return {"accelerator_type": kind, "runtime_version": "tpu-vm"}


def node_name(name: str) -> str:
    return f"{PARENT}/nodes/{name}"


@pytest.fixture(params=["rest", "grpc"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    hosts = HeldBackHosts()
    cloud = LocalTpuCloud(hosts)
    calls = TpuGrpcServer(cloud.service)
    cloud.start()
    calls.start()
    if request.param == "rest":
        options = ClientOptions(api_endpoint=cloud.url)
        client = tpu_v2.TpuClient(transport="rest", credentials=AnonymousCredentials(), client_options=options)
    else:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=grpc.insecure_channel(calls.address)))
    yield World(cloud, calls, hosts, client)
    hosts.may_start.set()
    cloud.service.lives.end_all()
    client.transport.close()
    calls.stop()
    cloud.stop()


def test_a_node_is_created_and_described_as_google_does(world):
    scheduling = tpu_v2.SchedulingConfig(spot=True)
    operation = world.create("slice-a", "v4-16", labels={"cluster": "one"}, scheduling_config=scheduling)
    node = operation.result(timeout=SECONDS)
    assert (operation.metadata.verb, operation.metadata.target) == ("create", node_name("slice-a"))
    assert node == world.client.get_node(name=node_name("slice-a"))
    assert (node.state.name, node.health.name) == ("READY", "HEALTHY")
    assert (node.accelerator_config.type_.name, node.accelerator_config.topology) == ("V4", "2x2x2")
    assert (dict(node.labels), node.scheduling_config.spot) == ({"cluster": "one"}, True)
    assert len(node.network_endpoints) == 2, "one for each host"
    assert node.id and node.create_time


def test_a_node_can_be_asked_for_by_its_topology(world):
    kind = tpu_v2.AcceleratorConfig.Type.V6E
    node = tpu_v2.Node(accelerator_config={"type_": kind, "topology": "4x4"}, runtime_version="tpu-vm")
    made = world.client.create_node(parent=PARENT, node_id="square", node=node).result(timeout=SECONDS)
    assert made.accelerator_type == "v6e-16"


def test_listings_come_in_pages_and_from_all_zones(world):
    for name in ("c", "a", "b"):
        world.create(name).result(timeout=SECONDS)
    pages = world.client.list_nodes(request={"parent": "projects/rehearsal/locations/-", "page_size": 2}).pages
    assert [[node.name for node in page.nodes] for page in pages] == [
        [node_name("a"), node_name("b")],
        [node_name("c")],
    ]


def test_a_node_goes_with_its_hosts(world):
    world.create("gone").result(timeout=SECONDS)
    world.client.delete_node(name=node_name("gone")).result(timeout=SECONDS)
    assert (world.nodes(), world.hosts.killed) == ([], ["gone"])
    with pytest.raises(exceptions.NotFound):
        world.client.get_node(name=node_name("gone"))


def test_node_deleted_during_creation_leaves_nothing(world):
    world.hosts.may_start.clear()
    created = world.create("hasty")
    assert world.hosts.is_starting.wait(SECONDS), "only then does the deletion have to wait for the creation"
    deleted = world.client.delete_node(name=node_name("hasty"))
    assert [node.state.name for node in world.nodes()] == ["DELETING"]
    world.hosts.may_start.set()
    deleted.result(timeout=SECONDS)
    with pytest.raises(exceptions.GoogleAPICallError, match="was deleted while it was being created"):
        created.result(timeout=SECONDS)
    assert (world.nodes(), world.hosts.killed) == ([], ["hasty"])


def test_a_node_whose_hosts_do_not_come_up_is_not_there(world):
    world.hosts.problem = "the disk is full"
    with pytest.raises(exceptions.InternalServerError, match="the disk is full"):
        world.create("weak").result(timeout=SECONDS)
    assert world.nodes() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node": {"accelerator_type": "v4-17", "runtime_version": "r"}}, "'v4-17' is not available.*v4-16"),
        ({"node": {"accelerator_type": "v4-8"}}, "runtime_version is required"),
        ({"node": {"runtime_version": "r"}}, "Exactly one of"),
        (
            {"node": {"accelerator_config": {"type_": "V4", "topology": "3x3x3"}, "runtime_version": "r"}},
            "Topology '3x3x3' is not available",
        ),
        ({"node_id": "Big Slice"}, "Invalid id 'Big Slice'"),
    ],
)
def test_a_bad_request_is_refused_and_says_why(world, change, words):
    with pytest.raises(exceptions.BadRequest, match=words):
        world.client.create_node(request={"parent": PARENT, "node_id": "a", "node": node_fields(), **change})
    assert world.nodes() == []


def test_taken_missing_and_foreign_names_get_google_errors(world):
    world.create("taken").result(timeout=SECONDS)
    with pytest.raises(exceptions.Conflict, match="already exists"):
        world.create("taken")
    with pytest.raises(exceptions.NotFound):
        world.client.delete_node(name=node_name("missing"))
    with pytest.raises(exceptions.Forbidden, match="locations/mars"):
        world.client.list_nodes(parent="projects/rehearsal/locations/mars")


def test_stock_out_fails_node_and_queued_resource_waits(world):
    with world.cloud.service.state.changed:
        world.cloud.service.state.supply.is_out = True
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity in the zone"):
        world.create("none").result(timeout=SECONDS)
    assert world.nodes() == []
    assert world.queue("later", {"node_id": "late"}).state.state.name == "ACCEPTED"
    world.wait_for_queue("later", "WAITING_FOR_RESOURCES")
    with world.cloud.service.state.changed:
        world.cloud.service.state.supply.is_out = False
        world.cloud.service.state.changed.notify_all()
    world.wait_for_queue("later", "ACTIVE")
    (node,) = world.nodes()
    assert (node.state.name, node.queued_resource) == ("READY", f"{PARENT}/queuedResources/later")


def test_a_preempted_node_frees_its_chips_but_not_its_quota(world):
    supply = world.cloud.service.state.supply
    supply.capacity["v4-8"], supply.quota["v4-8"] = 1, 2
    world.create("first").result(timeout=SECONDS)
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity"):
        world.create("second").result(timeout=SECONDS)
    world.cloud.service.lives.preempt(world.cloud.service.state.node(node_name("first")), 0.0)
    world.create("second").result(timeout=SECONDS)
    assert [node.state.name for node in world.nodes()] == ["PREEMPTED", "READY"]
    with pytest.raises(exceptions.TooManyRequests, match="Quota limit"):
        world.create("third")


def test_multi_node_queued_resource_created_and_deleted_whole(world):
    world.queue("pair", {"multislice_params": {"node_count": 2, "node_id_prefix": "twin"}})
    world.wait_for_queue("pair", "ACTIVE")
    assert [(node.name, node.multislice_node) for node in world.nodes()] == [
        (node_name("twin-0"), True),
        (node_name("twin-1"), True),
    ]
    name = f"{PARENT}/queuedResources/pair"
    with pytest.raises(exceptions.BadRequest, match="delete it with force"):
        world.client.delete_queued_resource(name=name)
    world.client.delete_queued_resource(request={"name": name, "force": True}).result(timeout=SECONDS)
    assert world.nodes() == [] and list(world.client.list_queued_resources(parent=PARENT)) == []
    assert sorted(world.hosts.killed) == ["twin-0", "twin-1"]


def test_queued_resource_suspended_when_slice_preempted(world):
    world.queue("spot", {"node_id": "cheap"})
    world.wait_for_queue("spot", "ACTIVE")
    world.cloud.service.lives.preempt(world.cloud.service.state.node(node_name("cheap")), 0.0)
    world.wait_for_queue("spot", "SUSPENDED")
    state = world.client.get_queued_resource(name=f"{PARENT}/queuedResources/spot").state
    assert state.state_initiator.name == "SERVICE"
    assert [node.state.name for node in world.nodes()] == ["PREEMPTED"], "until somebody deletes it"


def test_a_slice_of_one_host_can_be_stopped_and_started_again(world):
    world.create("one").result(timeout=SECONDS)
    assert world.client.stop_node({"name": node_name("one")}).result(timeout=SECONDS).state.name == "STOPPED"
    assert world.client.start_node({"name": node_name("one")}).result(timeout=SECONDS).state.name == "READY"
    world.create("many", "v4-16").result(timeout=SECONDS)
    with pytest.raises(exceptions.BadRequest, match="several hosts"):
        world.client.stop_node({"name": node_name("many")})


def test_labels_can_be_changed(world):
    world.create("named").result(timeout=SECONDS)
    update = {"node": {"name": node_name("named"), "labels": {"a": "b"}}, "update_mask": "labels"}
    if isinstance(world.client.transport, TpuGrpcTransport):
        update["update_mask"] = {"paths": ["labels"]}
    world.client.update_node(update).result(timeout=SECONDS)
    assert dict(world.client.get_node(name=node_name("named")).labels) == {"a": "b"}


def test_flaky_response_changes_nothing_and_calls_are_logged(world):
    world.cloud.service.fail_next(1, 503)
    with pytest.raises(exceptions.ServiceUnavailable):
        world.create("flaky")
    world.create("flaky").result(timeout=SECONDS)
    told = [(one["call"], one["about"], one["answer"]) for one in world.cloud.service.log()]
    assert told[:2] == [("CreateNode", node_name("flaky"), answer) for answer in ("UNAVAILABLE", "OK")]
    assert len({one["transport"] for one in world.cloud.service.log()}) == 1


@pytest.mark.parametrize("is_done", [False, True])
def test_operation_can_fail_before_or_after_its_effect(world, is_done):
    world.cloud.service.fail_operations(1, "create", "ABORTED", "lost a race", is_done=is_done)
    with pytest.raises(exceptions.GoogleAPICallError, match="lost a race"):
        world.create("doomed").result(timeout=SECONDS)
    assert [node.state.name for node in world.nodes()] == (["READY"] if is_done else [])
    world.create("doomed" if not is_done else "other").result(timeout=SECONDS)
    name = world.nodes()[0].name
    world.cloud.service.fail_operations(1, "delete", "INTERNAL", "a step failed", is_done=is_done)
    with pytest.raises(exceptions.GoogleAPICallError, match="a step failed"):
        world.client.delete_node(name=name).result(timeout=SECONDS)
    assert (name in [node.name for node in world.nodes()]) is not is_done


def test_an_operation_on_a_queued_resource_can_fail_too(world):
    name = f"{PARENT}/queuedResources/doomed"
    world.cloud.service.fail_operations(1, "create", "INTERNAL", "a step failed")
    with pytest.raises(exceptions.GoogleAPICallError, match="a step failed"):
        world.queue("doomed", {"node_id": "one"})
    assert list(world.client.list_queued_resources(parent=PARENT)) == []
    world.queue("doomed", {"node_id": "one"})
    world.wait_for_queue("doomed", "ACTIVE")
    world.cloud.service.fail_operations(1, "delete", "ABORTED", "lost a race")
    with pytest.raises(exceptions.GoogleAPICallError, match="lost a race"):
        world.client.delete_queued_resource(request={"name": name, "force": True}).result(timeout=SECONDS)
    assert world.client.get_queued_resource(name=name).state.state.name == "ACTIVE"


def test_a_lost_answer_hides_a_deed_that_was_done(world):
    world.cloud.lost_answers = world.calls.lost_answers = 1
    with pytest.raises((exceptions.ServiceUnavailable, requests.ConnectionError)):
        world.create("secret")
    assert [node.name for node in world.nodes()] == [node_name("secret")]


def test_refusal_targets_one_call_with_requested_code(world):
    world.cloud.service.refuse_next(1, "ABORTED", "lost a race", "CreateNode")
    assert world.nodes() == []
    with pytest.raises(exceptions.Conflict, match="lost a race"):
        world.create("later")
    world.create("later").result(timeout=SECONDS)


def test_node_addresses_assigned_and_conflicting_cidr_refused(world):
    world.create("slice-a").result(timeout=SECONDS)
    node = world.client.get_node(name=node_name("slice-a"))
    assert node.cidr_block and node.network_config.network and node.service_account.email
    with pytest.raises(exceptions.BadRequest, match="conflicts with subnetwork"):
        world.create("slice-b", cidr_block=node.cidr_block)
    world.create("slice-c", cidr_block="192.168.7.0/29").result(timeout=SECONDS)


def test_error_uses_google_json_and_unknown_field_refused():
    cloud = LocalTpuCloud()
    cloud.start()
    try:
        body = {"acceleratorType": "v4-8", "runtimeVersion": "r", "schedulingConfig": {"preemptable": True}}
        answer = requests.post(f"{cloud.url}/v2/{PARENT}/nodes", params={"nodeId": "a"}, json=body, timeout=10)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
        assert "preemptable" in error["message"]
        assert requests.get(f"{cloud.url}/v2/{PARENT}/nodes", timeout=10).json() == {}
    finally:
        cloud.stop()
