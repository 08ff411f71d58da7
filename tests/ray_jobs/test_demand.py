"""Pending jobs: the driver reports what each waits for.

It gives a job up only if no present, past or possible node fits it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ray_jobs.autoscaled import AutoscaledRay
from tests.support.shared_clusters import shared_cluster
from tests.support.waiting import limit_s, until
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.demand import Demand, PendingReason, cached_answer, explain_pending, explain_pending_job
from tradewind.ray_jobs.follow.follow import follow_job
from tradewind.ray_jobs.follow.log_lines import JobLog
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, judge_ending
from tradewind.ray_jobs.nodes import NodeInfo, NodeType, fetch_nodes, parse_node_types
from tradewind.ray_jobs.request import JobRequest
from tradewind.ray_jobs.usage import ACTOR, DRIVER, TASK, Usage, Work
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

GB = 2**30
SLICE_LABELS = {"ray.io/tpu-slice-name": "s1", "zone": "b"}
HEAD = NodeInfo("h", "10.0.0.1", is_head=True, total={"CPU": 8.0, "memory": 16.0 * GB}, free={"CPU": 2.0})
HOST = NodeInfo("w", "10.0.0.2", total={"CPU": 4.0, "TPU": 4.0}, labels=SLICE_LABELS)
DEAD = NodeInfo("d", "10.0.0.3", is_alive=False, why="preempted", total=HOST.total, labels=SLICE_LABELS)
TPUS = Demand({"TPU": 4.0})
CPUS = Demand({"CPU": 4.0})
TYPED = Demand({"GPU": 1.0, "accelerator_type:A100": 0.001})
GPUS = NodeInfo("g", "10.0.0.4", total={"GPU": 1.0, "accelerator_type:A100": 1.0}, free={})
ADDED = Demand(
    {"TPU": 4.0, "TPU-v4-8-head": 1.0, "accelerator_type:TPU-V4": 0.01, "memory": 1.0 * GB},
    {"ray.io/tpu-topology": "2x2x1"},
)
KINDS = [NodeType("v4", {"CPU": 4.0, "TPU": 4.0}, max_count=2), NodeType("off", {"GPU": 9.0}, max_count=0)]
EVER = {"waited_s": 1e6}


def test_demand_of_request_survives_json() -> None:
    request = JobRequest("j", "true", num_cpus=2, num_gpus=0, memory_bytes=GB, resources={"s": 0.5})
    assert Demand.of(request).resources == {"CPU": 2.0, "memory": float(GB), "s": 0.5}
    assert Demand.of(JobRequest("j", "true")) == Demand()
    labelled = Demand.of(JobRequest("j", "true", num_cpus=1, label_selector={"zone": "!b"}))
    assert Demand.from_json(json.loads(json.dumps(labelled.to_json()))) == labelled


@pytest.mark.parametrize(
    ("demand", "nodes", "options", "text", "is_infeasible"),
    [
        (TPUS, [HEAD], {}, "no node of the cluster can serve 4 TPU; the most that one node has is 0 TPU; wait", False),
        (TPUS, [HEAD], {"waited_s": 61.0}, "serve 4 TPU; the most that one node has is 0 TPU; none has", True),
        (TPUS, [HEAD, DEAD], EVER, "s1 could, but is gone (preempted); waiting for it", False),
        (CPUS, [HEAD], EVER, "every node that can serve 4 CPU is busy (10.0.0.1: 2 of 8 CPU free); waiting", False),
        (Demand({"CPU": 2.0}), [HEAD], {}, "has 2 CPU free", False),
        (TPUS, [HEAD, HOST], {}, "s1 can serve 4 TPU, but Ray has not started it: ", False),
        (Demand(), [HEAD], {}, "its environment is being built.", False),
        (TPUS, [HEAD], EVER | {"kinds": KINDS}, "the autoscaler can add v4 for 4 TPU; waiting for a node.", False),
        (Demand({"GPU": 1.0}), [HEAD], {"kinds": KINDS}, "the autoscaler can add v4 with 4 CPU, 4 TPU.", True),
        (ADDED, [HEAD], {"kinds": KINDS}, "the autoscaler can add v4", False),  # Ray adds the rest at the node's start
        (
            Demand({"TPU": 4.0}, {"zone": "b"}),
            [HEAD],
            {"kinds": KINDS},
            "no node has a label zone; the autoscaler",
            True,
        ),
        (
            Demand({}, {"zone": "in( c,a)", "disk": "!in(d, ,e"}),
            [HEAD, HOST],
            {},
            "label zone=in(a, c), label disk=!in(d, ,e; its nodes have label zone=b, no node has a label disk; wait",
            False,
        ),
        (TYPED, [HEAD], {}, "no node has a GPU of type A100; waiting, since a node may still join.", False),
        (TYPED, [GPUS], {}, "can serve 1 GPU of type A100 is busy (10.0.0.4: 0 of 1 GPU free)", False),
    ],
)
def test_reason_names_what_is_missing_or_awaited(
    demand: Demand, nodes: list[NodeInfo], options: dict[str, Any], text: str, is_infeasible: bool
) -> None:
    reason = explain_pending(demand, nodes, options.get("kinds"), options.get("waited_s", 0.0), 60.0)
    assert text in reason.text and reason.is_infeasible is is_infeasible


@pytest.mark.parametrize(
    ("selector", "fits"),
    [("b", True), ("a", False), ("!a", True), ("!b", False), ("in(a, b)", True), ("in(a)", False), ("!in(a)", True)],
)
def test_label_selectors_follow_ray_syntax(selector: str, fits: bool) -> None:
    assert Demand({"TPU": 1.0}, {"zone": selector}).fits(HOST.total, HOST.labels) is fits
    assert Demand({}, {"nowhere": "!b"}).fits(HOST.total, HOST.labels)


@pytest.mark.parametrize(
    "log", ["", "INFO -- StandardAutoscaler: {'provider': ", "StandardAutoscaler: 7\n", "Using Autoscaling Config: \n["]
)
def test_log_without_configuration_gives_no_node_types(log: str) -> None:
    assert parse_node_types(log) is None


async def test_concurrent_callers_share_answer_but_no_error() -> None:
    calls = []

    async def ask() -> int:
        calls.append(1)
        await asyncio.sleep(0)
        if len(calls) == 1:
            raise ConnectionError
        return len(calls)

    async with JobsApi(RayCluster("one", "http://127.0.0.1:1")) as one:
        first = await asyncio.gather(*(cached_answer(one, "it", ask) for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in first} == {ConnectionError}
        assert await asyncio.gather(*(cached_answer(one, "it", ask) for _ in range(5))) == [2] * 5
        assert await cached_answer(one, "something else", ask) == 3
    async with JobsApi(RayCluster("other", "http://127.0.0.1:1")) as other:
        assert await cached_answer(other, "it", ask) == 4


async def test_cancelled_caller_leaves_shared_response_to_others() -> None:
    started = asyncio.Event()
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def ask() -> int:
        started.set()
        return await answer

    async with JobsApi(RayCluster("one", "http://127.0.0.1:1")) as api:
        cancelled, waiting = (asyncio.create_task(cached_answer(api, "it", ask)) for _ in range(2))
        await started.wait()
        cancelled.cancel()
        answer.set_result(7)
        assert await waiting == 7
        with pytest.raises(asyncio.CancelledError):
            await cancelled


def test_holders_are_named_by_kind_and_largest_first() -> None:
    drivers = [Work(f"job{number}", DRIVER, {"CPU": 1.0, "memory": 2.0 * GB}) for number in range(4)]
    usage = Usage(holding=[*drivers, *[Work("job0\n", ACTOR, {"CPU": 0.5})] * 6, Work("0a", TASK, {"CPU": 2.0})])
    assert usage.holders({"memory", "CPU", "GPU"}) == (
        "CPU is held by the drivers of job0 (1), job1 (1), job2 (1), the actors of job0 (3), the Ray tasks of 0a (2) "
        "and 1 more. memory is held by the drivers of job0 (2.0 GiB), job1 (2.0 GiB), job2 (2.0 GiB), job3 (2.0 GiB)."
    )
    assert usage.only_drivers_hold({"memory"}) and not usage.only_drivers_hold({"CPU"})
    assert usage.holders({"GPU"}) == "" and not usage.only_drivers_hold({"GPU"})


# ---- on real heads


def ask(address: str, demand: Demand, waited_s: float = 0.0) -> PendingReason:
    async def explained() -> PendingReason:
        async with JobsApi(RayCluster("here", address)) as api:
            return await explain_pending_job(api, demand, waited_s=waited_s)

    return asyncio.run(explained())


def until_text(address: str, demand: Demand, text: str) -> PendingReason:
    until(lambda: text in ask(address, demand).text, text, seen=lambda: ask(address, demand))
    return ask(address, demand)


WAITS_FOR_ITSELF = shlex.join(
    [
        "python",
        "-c",
        """
import ray
ray.init()
task = ray.remote(num_cpus=0, resources={"my_slice": 0.5})(lambda: None)
ray.get([task.remote(), task.remote()])
""",
    ]
)


async def first_notice(cluster: RayCluster, job: str) -> str:
    """Follow a job up to the first notice of its two Ray tasks."""
    notices: asyncio.Queue[str] = asyncio.Queue()
    following = asyncio.create_task(follow_job(cluster, job, log=JobLog(lambda lines: None), notice=notices.put_nowait))
    try:
        while "2 of its" not in (notice := await asyncio.wait_for(notices.get(), limit_s())):
            pass
        return notice
    finally:
        following.cancel()


@pytest.fixture(scope="module")
def ray() -> LocalRay:
    return shared_cluster("open")


@pytest.mark.ray
def test_plain_cluster_explains_busy_missing_and_lost_nodes(ray: LocalRay, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nodes() -> list[NodeInfo]:
        async with JobsApi(RayCluster("here", ray.address)) as api:
            return await fetch_nodes(api)

    [head] = [node for node in asyncio.run(nodes()) if node.is_head]
    assert head.is_alive and head.total["CPU"] == 2.0 and head.ip.startswith("127.")
    jobs = RayJobs(RayCluster("here", ray.address))
    ray.start_slice(LocalSlice("my_slice", "v4-8"))
    jobs.submit_or_attach(JobRequest("holds", WAITS_FOR_ITSELF, resources={"my_slice": 0.75}))
    half = Demand({"my_slice": 0.5})
    why = "is busy (my_slice: 0.25 of 1 my_slice free)"
    held = "my_slice is held by the driver of holds (0.75)."
    assert not until_text(ray.address, half, f"{why}; waiting for free resources. {held}").is_infeasible
    with monkeypatch.context() as patched:
        for name, seconds in {
            "demand.CACHE_TTL_S": 0.0,
            "demand.MIN_WAIT_S": 0.0,
            "follow.follow.FIRST_NOTICE_S": 0.1,
        }.items():
            patched.setattr(f"tradewind.ray_jobs.{name}", seconds)
        for name in ("CACHE_TTL_S", "NOTICE_INTERVAL_S"):
            patched.setattr(f"tradewind.ray_jobs.follow.follow.{name}", 0.5)
        assert asyncio.run(first_notice(jobs.cluster, "holds")) == (
            "Ray job holds runs, but 2 of its Ray tasks wait for 0.5 my_slice each: every node that can serve 0.5 "
            f"my_slice {why}. {held} Drivers hold theirs to their end: run fewer of these jobs at once, or request "
            "less for their drivers."
        )
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
def test_autoscaled_cluster_knows_infeasible_demand_at_once(autoscaled: LocalRay) -> None:
    address = autoscaled.address
    until_text(address, Demand({"TPU": 4.0}), "the autoscaler can add big for 4 TPU")
    for demand in (Demand({"GPU": 1.0}), Demand({"CPU": 64.0}), Demand({"CPU": 4.0}, {"kind": "other"})):
        reason = ask(address, demand)
        assert reason.is_infeasible and "big with 8 CPU, 4 TPU" in reason.text
    assert not ask(address, Demand({"CPU": 4.0}, {"kind": "big"})).is_infeasible
    assert ask(address, Demand({"rare": 1.0})).is_infeasible, "there may be none of that type"


@pytest.mark.ray
def test_job_dropped_by_head_ends_as_not_started(autoscaled: LocalRay) -> None:
    jobs = RayJobs(RayCluster("here", autoscaled.address))
    jobs.submit_or_attach(JobRequest("queued", "true", resources={"never": 1}))

    async def ending() -> Ending:
        async with JobsApi(jobs.cluster) as api:
            return await judge_ending(api, "queued", await api.details("queued"))

    until(lambda: (details := jobs.details("queued")) is None or details.has_ended)
    assert asyncio.run(ending()).kind is EndingKind.NOT_STARTED
