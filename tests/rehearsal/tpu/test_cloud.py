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
from tradewind.rehearsal.tpu.service import TpuService

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

    def start(self, described: SliceMetadata) -> list[str]:
        self.is_starting.set()
        assert self.may_start.wait(SECONDS)
        if self.problem:
            raise HostsError(self.problem)
        return super().start(described)

    def kill(self, name: str) -> None:
        self.killed.append(name)


@dataclass
class CloudUnderTest:
    """One cloud and its client."""

    cloud: LocalTpuCloud
    grpc: TpuGrpcServer
    hosts: HeldBackHosts
    client: tpu_v2.TpuClient

    @property
    def service(self) -> TpuService:
        return self.cloud.service

    def create(self, name: str, kind: str = "v4-8", **fields: Any) -> Any:
        node = tpu_v2.Node(accelerator_type=kind, runtime_version="tpu-vm", **fields)
        return self.client.create_node(parent=PARENT, node_id=name, node=node)

    def queue(self, name: str, *specs: dict[str, Any]) -> Any:
        body = {"tpu": {"node_spec": [{"node": node_fields(), **spec} for spec in specs]}, "spot": {}}
        created = self.client.create_queued_resource(parent=PARENT, queued_resource_id=name, queued_resource=body)
        return created.result(timeout=SECONDS)

    def nodes(self) -> list[tpu_v2.Node]:
        return list(self.client.list_nodes(parent=PARENT))

    def states(self) -> list[str]:
        return [node.state.name for node in self.nodes()]

    def wait_for_queue(self, name: str, state: str) -> None:
        changed, queued, full = self.service.state.changed, self.service.state.queued, queue_name(name)
        with changed:
            assert changed.wait_for(lambda: queued[full].state.state.name == state, SECONDS), queued[full].state
        assert self.client.get_queued_resource(name=full).state.state.name == state


def node_fields(kind: str = "v4-8") -> dict[str, Any]:
    return {"accelerator_type": kind, "runtime_version": "tpu-vm"}


def node_name(name: str) -> str:
    return f"{PARENT}/nodes/{name}"


def queue_name(name: str) -> str:
    return f"{PARENT}/queuedResources/{name}"


@pytest.fixture(params=["rest", "grpc"])
def tpu(request: pytest.FixtureRequest) -> Iterator[CloudUnderTest]:
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
    yield CloudUnderTest(cloud, calls, hosts, client)
    hosts.may_start.set()
    cloud.service.lives.end_all()
    client.transport.close()
    calls.stop()
    cloud.stop()


def test_created_node_is_described_as_google_does(tpu):
    scheduling = tpu_v2.SchedulingConfig(spot=True)
    operation = tpu.create("slice-a", "v4-16", labels={"cluster": "one"}, scheduling_config=scheduling)
    node = operation.result(timeout=SECONDS)
    assert (operation.metadata.verb, operation.metadata.target) == ("create", node_name("slice-a"))
    assert node == tpu.client.get_node(name=node_name("slice-a"))
    assert (node.state.name, node.health.name) == ("READY", "HEALTHY")
    assert (node.accelerator_config.type_.name, node.accelerator_config.topology) == ("V4", "2x2x2")
    assert (dict(node.labels), node.scheduling_config.spot) == ({"cluster": "one"}, True)
    assert len(node.network_endpoints) == 2, "one for each host"
    assert node.id and node.create_time
    assert node.cidr_block and node.network_config.network and node.service_account.email
    with pytest.raises(exceptions.BadRequest, match="conflicts with subnetwork"):
        tpu.create("slice-b", cidr_block=node.cidr_block)
    tpu.create("slice-c", cidr_block="192.168.7.0/29").result(timeout=SECONDS)


def test_node_can_be_created_by_topology(tpu):
    kind = tpu_v2.AcceleratorConfig.Type.V6E
    node = tpu_v2.Node(accelerator_config={"type_": kind, "topology": "4x4"}, runtime_version="tpu-vm")
    created = tpu.client.create_node(parent=PARENT, node_id="square", node=node).result(timeout=SECONDS)
    assert created.accelerator_type == "v6e-16"


def test_lists_have_pages_and_all_zones_and_no_deleted_node(tpu):
    for name in ("c", "a", "b"):
        tpu.create(name).result(timeout=SECONDS)
    pages = tpu.client.list_nodes(request={"parent": "projects/rehearsal/locations/-", "page_size": 2}).pages
    assert [[node.name[-1] for node in page.nodes] for page in pages] == [["a", "b"], ["c"]]
    tpu.client.delete_node(name=node_name("a")).result(timeout=SECONDS)
    assert ([node.name for node in tpu.nodes()], tpu.hosts.killed) == ([node_name("b"), node_name("c")], ["a"])
    with pytest.raises(exceptions.NotFound):
        tpu.client.get_node(name=node_name("a"))


def test_node_deleted_during_creation_leaves_nothing(tpu):
    tpu.hosts.may_start.clear()
    created = tpu.create("hasty")
    assert tpu.hosts.is_starting.wait(SECONDS), "only then does the deletion have to wait for the creation"
    deleted = tpu.client.delete_node(name=node_name("hasty"))
    assert tpu.states() == ["DELETING"]
    tpu.hosts.may_start.set()
    deleted.result(timeout=SECONDS)
    with pytest.raises(exceptions.GoogleAPICallError, match="was deleted while it was being created"):
        created.result(timeout=SECONDS)
    assert (tpu.nodes(), tpu.hosts.killed) == ([], ["hasty"])


def test_node_whose_hosts_do_not_start_is_removed(tpu):
    tpu.hosts.problem = "the disk is full"
    with pytest.raises(exceptions.InternalServerError, match="the disk is full"):
        tpu.create("weak").result(timeout=SECONDS)
    assert tpu.nodes() == []


ODD_TOPOLOGY = {"type_": "V4", "topology": "3x3x3"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node": {"accelerator_type": "v4-17", "runtime_version": "r"}}, "'v4-17' is not available.*v4-16"),
        ({"node": {"accelerator_type": "v4-8"}}, "runtime_version is required"),
        ({"node": {"runtime_version": "r"}}, "Exactly one of"),
        ({"node": {"accelerator_config": ODD_TOPOLOGY, "runtime_version": "r"}}, "Topology '3x3x3' is not available"),
        ({"node_id": "Big Slice"}, "Invalid id 'Big Slice'"),
    ],
)
def test_bad_request_is_refused_with_reason(tpu, change, words):
    with pytest.raises(exceptions.BadRequest, match=words):
        tpu.client.create_node(request={"parent": PARENT, "node_id": "a", "node": node_fields(), **change})
    assert tpu.nodes() == []


def test_taken_missing_and_foreign_names_get_google_errors(tpu):
    tpu.create("taken").result(timeout=SECONDS)
    with pytest.raises(exceptions.Conflict, match="already exists"):
        tpu.create("taken")
    with pytest.raises(exceptions.NotFound):
        tpu.client.delete_node(name=node_name("missing"))
    with pytest.raises(exceptions.Forbidden, match="locations/mars"):
        tpu.client.list_nodes(parent="projects/rehearsal/locations/mars")


def test_stock_out_fails_node_and_queued_resource_waits(tpu):
    tpu.service.state.supply.is_out = True
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity in the zone"):
        tpu.create("none").result(timeout=SECONDS)
    assert tpu.nodes() == []
    assert tpu.queue("later", {"node_id": "late"}).state.state.name == "ACCEPTED"
    tpu.wait_for_queue("later", "WAITING_FOR_RESOURCES")
    with tpu.service.state.changed:
        tpu.service.state.supply.is_out = False
        tpu.service.state.changed.notify_all()
    tpu.wait_for_queue("later", "ACTIVE")
    (node,) = tpu.nodes()
    assert (node.state.name, node.queued_resource) == ("READY", queue_name("later"))


def test_preempted_node_frees_its_chips_but_not_its_quota(tpu):
    supply = tpu.service.state.supply
    supply.capacity["v4-8"], supply.quota["v4-8"] = 1, 2
    tpu.create("first").result(timeout=SECONDS)
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity"):
        tpu.create("second").result(timeout=SECONDS)
    tpu.service.lives.preempt(tpu.service.state.node(node_name("first")), 0.0)
    tpu.create("second").result(timeout=SECONDS)
    assert tpu.states() == ["PREEMPTED", "READY"]
    with pytest.raises(exceptions.TooManyRequests, match="Quota limit"):
        tpu.create("third")


def test_multi_node_queued_resource_created_and_deleted_whole(tpu):
    tpu.queue("pair", {"multislice_params": {"node_count": 2, "node_id_prefix": "twin"}})
    tpu.wait_for_queue("pair", "ACTIVE")
    assert [(node.name, node.multislice_node) for node in tpu.nodes()] == [
        (node_name(name), True) for name in ("twin-0", "twin-1")
    ]
    name = queue_name("pair")
    with pytest.raises(exceptions.BadRequest, match="delete it with force"):
        tpu.client.delete_queued_resource(name=name)
    tpu.client.delete_queued_resource(request={"name": name, "force": True}).result(timeout=SECONDS)
    assert tpu.nodes() == [] and list(tpu.client.list_queued_resources(parent=PARENT)) == []
    assert sorted(tpu.hosts.killed) == ["twin-0", "twin-1"]


def test_queued_resource_suspended_when_slice_preempted(tpu):
    tpu.queue("spot", {"node_id": "cheap"})
    tpu.wait_for_queue("spot", "ACTIVE")
    tpu.service.lives.preempt(tpu.service.state.node(node_name("cheap")), 0.0)
    tpu.wait_for_queue("spot", "SUSPENDED")
    state = tpu.client.get_queued_resource(name=queue_name("spot")).state
    assert state.state_initiator.name == "SERVICE"
    assert tpu.states() == ["PREEMPTED"], "until a client deletes it"


def test_one_host_slice_can_be_stopped_started_and_labeled(tpu):
    name = node_name("one")
    tpu.create("one").result(timeout=SECONDS)
    assert tpu.client.stop_node({"name": name}).result(timeout=SECONDS).state.name == "STOPPED"
    assert tpu.client.start_node({"name": name}).result(timeout=SECONDS).state.name == "READY"
    mask = {"paths": ["labels"]} if isinstance(tpu.client.transport, TpuGrpcTransport) else "labels"
    update = {"node": {"name": name, "labels": {"a": "b"}}, "update_mask": mask}
    tpu.client.update_node(update).result(timeout=SECONDS)
    assert dict(tpu.client.get_node(name=name).labels) == {"a": "b"}
    tpu.create("many", "v4-16").result(timeout=SECONDS)
    with pytest.raises(exceptions.BadRequest, match="several hosts"):
        tpu.client.stop_node({"name": node_name("many")})


def test_refused_calls_change_nothing_and_are_logged(tpu):
    tpu.service.fail_next(1, 503)
    with pytest.raises(exceptions.ServiceUnavailable):
        tpu.create("flaky")
    tpu.service.refuse_next(1, "ABORTED", "lost a race", "CreateNode")
    assert tpu.nodes() == [], "another call is not refused"
    with pytest.raises(exceptions.Conflict, match="lost a race"):
        tpu.create("flaky")
    tpu.create("flaky").result(timeout=SECONDS)
    logged = [(call["about"], call["answer"]) for call in tpu.service.log() if call["call"] == "CreateNode"]
    assert logged == [(node_name("flaky"), answer) for answer in ("UNAVAILABLE", "ABORTED", "OK")]
    assert len({call["transport"] for call in tpu.service.log()}) == 1


@pytest.mark.parametrize("is_done", [False, True])
def test_operation_can_fail_before_or_after_its_effect(tpu, is_done):
    tpu.service.fail_operations(1, "create", "ABORTED", "lost a race", is_done=is_done)
    with pytest.raises(exceptions.GoogleAPICallError, match="lost a race"):
        tpu.create("doomed").result(timeout=SECONDS)
    assert tpu.states() == (["READY"] if is_done else [])
    tpu.create("doomed" if not is_done else "other").result(timeout=SECONDS)
    name = tpu.nodes()[0].name
    tpu.service.fail_operations(1, "delete", "INTERNAL", "a step failed", is_done=is_done)
    with pytest.raises(exceptions.GoogleAPICallError, match="a step failed"):
        tpu.client.delete_node(name=name).result(timeout=SECONDS)
    assert (name in [node.name for node in tpu.nodes()]) is not is_done


def test_queued_resource_operation_can_fail_without_effect(tpu):
    name = queue_name("doomed")
    tpu.service.fail_operations(1, "create", "INTERNAL", "a step failed")
    with pytest.raises(exceptions.GoogleAPICallError, match="a step failed"):
        tpu.queue("doomed", {"node_id": "one"})
    assert list(tpu.client.list_queued_resources(parent=PARENT)) == []
    tpu.queue("doomed", {"node_id": "one"})
    tpu.wait_for_queue("doomed", "ACTIVE")
    tpu.service.fail_operations(1, "delete", "ABORTED", "lost a race")
    with pytest.raises(exceptions.GoogleAPICallError, match="lost a race"):
        tpu.client.delete_queued_resource(request={"name": name, "force": True}).result(timeout=SECONDS)
    assert tpu.client.get_queued_resource(name=name).state.state.name == "ACTIVE"


def test_lost_answer_hides_a_call_that_took_effect(tpu):
    tpu.cloud.lost_answers = tpu.grpc.lost_answers = 1
    with pytest.raises((exceptions.ServiceUnavailable, requests.ConnectionError)):
        tpu.create("secret")
    assert [node.name for node in tpu.nodes()] == [node_name("secret")]


def test_unknown_field_or_api_is_refused_in_google_json():
    cloud = LocalTpuCloud()
    cloud.start()
    try:
        body = {"acceleratorType": "v4-8", "runtimeVersion": "r", "schedulingConfig": {"preemptable": True}}
        answer = requests.post(f"{cloud.url}/v2/{PARENT}/nodes", params={"nodeId": "a"}, json=body, timeout=10)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
        assert "preemptable" in error["message"]
        assert requests.get(f"{cloud.url}/v2/{PARENT}/nodes", timeout=10).json() == {}
        answer = requests.get(f"{cloud.url}/compute/v1/projects/rehearsal/zones/z/instances", timeout=10)
        assert answer.status_code == 501 and "is not served by the rehearsal" in answer.text
    finally:
        cloud.stop()
