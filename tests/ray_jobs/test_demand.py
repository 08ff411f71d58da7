"""Pending jobs: the driver reports what each waits for.

It gives a job up only if no present, past or possible node fits it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.ray_jobs.autoscaled import AutoscaledRay
from tests.support.shared_clusters import shared_cluster
from tests.support.waiting import until
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import Demand, PendingReason, explain_pending, explain_pending_job
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, judge_ending
from tradewind.ray_jobs.nodes import NodeInfo, NodeType, fetch_nodes, parse_node_types
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

GB = 2**30
SLICE_LABELS = {"ray.io/tpu-slice-name": "s1", "zone": "b"}
HEAD = NodeInfo("h", "10.0.0.1", is_head=True, total={"CPU": 8.0, "memory": 16.0 * GB}, free={"CPU": 2.0})
HOST = NodeInfo("w", "10.0.0.2", total={"CPU": 4.0, "TPU": 4.0}, labels=SLICE_LABELS)
DEAD = NodeInfo("d", "10.0.0.3", is_alive=False, why="preempted", total=HOST.total, labels=SLICE_LABELS)
TPUS = Demand({"TPU": 4.0})


def judged(
    demand: Demand, *nodes: NodeInfo, kinds: list[NodeType] | None = None, waited_s: float = 0.0
) -> PendingReason:
    return explain_pending(demand, nodes, kinds, waited_s, 60.0)


# ---- pure


def test_a_demand_is_made_of_what_the_request_names() -> None:
    request = JobRequest("j", "true", num_cpus=2, num_gpus=0, memory_bytes=GB, resources={"s": 0.5})
    assert Demand.of(request).resources == {"CPU": 2.0, "memory": float(GB), "s": 0.5}
    assert Demand.of(JobRequest("j", "true")) == Demand()
    labelled = Demand.of(JobRequest("j", "true", num_cpus=1, label_selector={"zone": "!b"}))
    assert Demand.from_json(json.loads(json.dumps(labelled.to_json()))) == labelled


def test_demand_infeasible_without_autoscaler_after_grace_only() -> None:
    early, late = judged(TPUS, HEAD), judged(TPUS, HEAD, waited_s=61.0)
    assert early.text.startswith("no node of the cluster can serve 4 TPU; the most that one node has is 0 TPU")
    assert early.text.endswith("waiting, since a node may still join.") and not early.is_infeasible
    assert late.is_infeasible and "can serve 4 TPU" in late.text


def test_a_node_that_died_may_come_back_however_long_it_takes() -> None:
    judgement = judged(TPUS, HEAD, DEAD, waited_s=1e6)
    assert not judgement.is_infeasible
    assert "s1 could, but is gone (preempted)" in judgement.text


def test_a_busy_cluster_is_told_with_what_is_free() -> None:
    judgement = judged(Demand({"CPU": 4.0}), HEAD, waited_s=1e6)
    assert judgement == PendingReason(
        "every node that can serve 4 CPU is busy (10.0.0.1: 2 of 8 CPU free); waiting for free resources."
    )


def test_job_reported_starting_when_capacity_free_or_unknown() -> None:
    assert "has 2 CPU free" in judged(Demand({"CPU": 2.0}), HEAD).text
    assert "s1 can serve 4 TPU, but Ray has not started it: " in judged(TPUS, HEAD, HOST).text
    assert "environment" in judged(Demand(), HEAD).text


def test_job_waits_for_autoscaler_node_type_with_no_nodes() -> None:
    kinds = [NodeType("v4", {"CPU": 4.0, "TPU": 4.0}, max_count=2)]
    assert judged(TPUS, HEAD, kinds=kinds, waited_s=1e6) == PendingReason(
        "the autoscaler can add v4 for 4 TPU; waiting for a node."
    )


def test_what_no_node_type_has_is_infeasible_at_once() -> None:
    kinds = [NodeType("v4", {"CPU": 4.0, "TPU": 4.0}, max_count=2), NodeType("off", {"GPU": 9.0}, max_count=0)]
    judgement = judged(Demand({"GPU": 1.0}), HEAD, kinds=kinds)
    assert judgement.is_infeasible
    assert "can serve 1 GPU" in judgement.text and judgement.text.endswith(
        "the autoscaler can add v4 with 4 CPU, 4 TPU."
    )


def test_resources_added_at_node_start_not_missing_in_node_type() -> None:
    kinds = [NodeType("v4", {"CPU": 4.0, "TPU": 4.0}, max_count=2)]
    added = {"TPU": 4.0, "TPU-v4-8-head": 1.0, "accelerator_type:TPU-V4": 0.01, "memory": 1.0 * GB}
    assert not judged(Demand(added, {"ray.io/tpu-topology": "2x2x1"}), HEAD, kinds=kinds).is_infeasible
    assert judged(Demand({"TPU": 4.0}, {"zone": "b"}), HEAD, kinds=kinds).is_infeasible


@pytest.mark.parametrize(
    ("selector", "fits"),
    [("b", True), ("a", False), ("!a", True), ("!b", False), ("in(a, b)", True), ("in(a)", False), ("!in(a)", True)],
)
def test_label_selectors_mean_what_ray_means(selector: str, fits: bool) -> None:
    assert Demand({"TPU": 1.0}, {"zone": selector}).fits(HOST.total, HOST.labels) is fits
    assert Demand({}, {"nowhere": "!b"}).fits(HOST.total, HOST.labels)


def test_a_log_without_a_configuration_gives_no_node_types() -> None:
    for log in (
        "",
        "INFO -- StandardAutoscaler: {'provider': ",
        "StandardAutoscaler: 7\n",
        "Using Autoscaling Config: \n[",
    ):
        assert parse_node_types(log) is None


# ---- on real heads


def ask(address: str, demand: Demand, waited_s: float = 0.0) -> PendingReason:
    async def one() -> PendingReason:
        async with JobsApi(RayCluster("here", address)) as api:
            return await explain_pending_job(api, demand, waited_s=waited_s)

    return asyncio.run(one())


def until_text(address: str, demand: Demand, text: str) -> PendingReason:
    until(lambda: text in ask(address, demand).text, text, seen=lambda: ask(address, demand))
    return ask(address, demand)


@pytest.fixture(scope="module")
def ray() -> LocalRay:
    return shared_cluster("open")


@pytest.mark.ray
def test_a_plain_cluster_says_what_is_busy_missing_and_gone(ray: LocalRay) -> None:
    jobs = RayJobs(RayCluster("here", ray.address))
    ray.start_slice(LocalSlice("my_slice", "v4-8"))
    jobs.submit_or_attach(JobRequest("holds", "sleep 600", resources={"my_slice": 0.75}))
    half = Demand({"my_slice": 0.5})
    busy = until_text(ray.address, half, "is busy (my_slice: 0.25 of 1 my_slice free)")
    assert not busy.is_infeasible
    never = Demand({"other": 1.0})
    assert not ask(ray.address, never).is_infeasible
    assert ask(ray.address, never, waited_s=3600.0).is_infeasible
    ray.kill_slice("my_slice")
    until_text(ray.address, half, "my_slice could, but is gone")
    assert not ask(ray.address, half, waited_s=3600.0).is_infeasible


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.long)])
def autoscaled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """Start a head with an autoscaler of this generation; it fails jobs that do not start in 2 s."""
    stack = LocalStack(tmp_path_factory.mktemp("autoscaled"))
    ray = AutoscaledRay(stack, generation=request.param)
    ray.add_env({"RAY_JOB_START_TIMEOUT_SECONDS": "2"})
    try:
        ray.start()
        yield ray
    finally:
        stack.stop()


@pytest.mark.ray
def test_an_autoscaled_cluster_knows_at_once_what_can_never_come(autoscaled: LocalRay) -> None:
    address = autoscaled.address
    until_text(address, Demand({"TPU": 4.0}), "the autoscaler can add big for 4 TPU")
    for demand in (Demand({"GPU": 1.0}), Demand({"CPU": 64.0}), Demand({"CPU": 4.0}, {"kind": "other"})):
        judgement = ask(address, demand)
        assert judgement.is_infeasible and "big with 8 CPU, 4 TPU" in judgement.text
    assert not ask(address, Demand({"CPU": 4.0}, {"kind": "big"})).is_infeasible
    assert ask(address, Demand({"rare": 1.0})).is_infeasible, "there may be none of that type"


@pytest.mark.ray
def test_job_dropped_by_head_ends_as_not_started(autoscaled: LocalRay) -> None:
    jobs = RayJobs(RayCluster("here", autoscaled.address))
    jobs.submit_or_attach(JobRequest("queued", "true", resources={"never": 1}))

    def has_ended() -> bool:
        details = jobs.details("queued")
        return details is None or details.has_ended

    async def judged() -> Ending:
        async with JobsApi(jobs.cluster) as api:
            return await judge_ending(api, "queued", await api.details("queued"))

    until(has_ended)
    assert asyncio.run(judged()).kind is EndingKind.NOT_STARTED


@pytest.mark.ray
def test_nodes_are_told_with_what_they_have(ray: LocalRay) -> None:
    async def nodes() -> list[NodeInfo]:
        async with JobsApi(RayCluster("here", ray.address)) as api:
            return await fetch_nodes(api)

    [head] = [node for node in asyncio.run(nodes()) if node.is_head]
    assert head.is_alive and head.total["CPU"] == 2.0 and head.ip.startswith("127.")
