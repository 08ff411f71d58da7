"""Host groups and complete slices, computed without Ray."""

import pytest

from tradewind.runtime.pods.capacity.slices import HostGroup, complete_slices, uniform_slices
from tradewind.runtime.pods.nodes import Node
from tradewind.steps import Hosts, TpuSlice


def _node(node_id: str, slice_name: str, worker_id: str | None, pod_type: str) -> Node:
    labels = {"ray.io/tpu-slice-name": slice_name, "ray.io/tpu-pod-type": pod_type}
    return Node(node_id, "10.0.0.1", 1, labels if worker_id is None else {**labels, "ray.io/tpu-worker-id": worker_id})


@pytest.mark.parametrize(
    ("name", "hosts", "chips"),
    [
        ("v4-8", 1, 4),
        ("v5litepod-1", 1, 1),
        ("v5litepod-2", 1, 2),
        ("v5litepod-8", 1, 8),
        ("v6e-8", 1, 8),
        ("v4-32", 4, 4),
    ],
)
def test_every_slice_type_is_host_group_without_ray_topology(name, hosts, chips):
    group = HostGroup.of(TpuSlice(name))
    assert (group.hosts, group.resources, group.head_resource) == (hosts, {"TPU": chips}, f"TPU-{name}-head")


def test_hosts_request_their_own_cpus_and_gpus():
    group = HostGroup.of(Hosts(3, num_cpus=8, gpus=4, gpu_type="A100"))
    assert group.resources == {"CPU": 8, "GPU": 4, "accelerator_type:A100": 0.001}
    assert (group.name, group.hosts, group.is_tpu) == ("3-host A100", 3, False)
    assert HostGroup.of_hosts(2).name == "2-host CPU"


def test_slice_requires_all_hosts_and_sorts_them_by_id():
    nodes = [
        _node("w1", "whole", "1", "v4-16"),
        _node("w0", "whole", "0", "v4-16"),
        _node("h0", "half", "0", "v4-16"),
        _node("s0", "single", None, "v4-8"),
    ]
    (whole,) = complete_slices(nodes, HostGroup.of_slice("v4-16"))
    assert (whole.name, [one.id for one in whole.nodes]) == ("whole", ["w0", "w1"])
    (single,) = complete_slices(nodes, HostGroup.of_slice("v4-8"))
    assert (single.name, [one.id for one in single.nodes]) == ("single", ["s0"])
    assert complete_slices(nodes, HostGroup.of_slice("v4-32")) == []


def _part(slice_name: str, worker: int, chips: int, topology: str = "2x4") -> Node:
    labels = _node("", slice_name, str(worker), "v5litepod-8").labels
    return Node(f"{slice_name}{worker}", "10.0.0.1", 1, {**labels, "ray.io/tpu-topology": topology}, {"TPU": chips})


def test_host_count_follows_from_topology_and_chips():
    group = HostGroup.of_slice("v5litepod-8")
    nodes = [_part("two", 0, 4), _part("two", 1, 4), _part("half", 0, 4), _part("one", 0, 8)]
    assert [(one.name, len(one.nodes)) for one in complete_slices(nodes, group)] == [("one", 1), ("two", 2)]


def test_slices_of_one_pod_have_equal_host_counts():
    group = HostGroup.of_slice("v5litepod-8")
    nodes = [_part("one", 0, 8), *(_part(name, worker, 4) for name in ("x", "y") for worker in (0, 1))]
    assert [one.name for one in uniform_slices(complete_slices(nodes, group))] == ["x", "y"]
    assert uniform_slices([]) == []
