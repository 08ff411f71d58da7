"""Endings of jobs on real clusters: each has its own kind and sentence."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from pathlib import Path

import pytest

from tests.support.shared_clusters import shared_cluster
from tests.support.supervisors import is_supervisor
from tests.support.waiting import until
from tradewind.ray_jobs.api import JobsApi
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, classify, judge_ending, node_in_question
from tradewind.ray_jobs.nodes import NodeInfo
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

NODE = "ab" * 28
ALIVE, DEAD = NodeInfo(NODE, "10.0.0.2"), NodeInfo(NODE, "10.0.0.2", is_alive=False, why="missed heartbeats")
ACTOR_DIED = f"""Traceback (most recent call last):
  File "train.py", line 6, in <module>
    raise value
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: A
The actor died because its node has died. Node Id: {NODE}
\tthe actor's node was preempted: spot""".splitlines()


def failed(error_type: str, message: str = "", exit_code: int | None = None) -> JobDetails:
    return JobDetails("j", "FAILED", message=message, error_type=error_type, exit_code=exit_code, node_id="cd" * 28)


def classified(exit_code: int, lines: list[str], node: NodeInfo | None = None) -> Ending:
    return classify("j", failed("JOB_ENTRYPOINT_COMMAND_ERROR", "", exit_code), lines, node)


def test_ending_survives_json() -> None:
    ending = Ending(EndingKind.USER_ERROR, "It failed.", 3, "Traceback", ("one", "two"))
    assert Ending.from_json(json.loads(json.dumps(ending.to_json()))) == ending


def test_driver_ended_by_lost_node_was_preempted() -> None:
    assert classified(1, ACTOR_DIED).kind is EndingKind.PREEMPTED
    ending = classified(1, ACTOR_DIED, DEAD)
    assert ending.kind is EndingKind.PREEMPTED and "missed heartbeats" in ending.sentence
    assert node_in_question(failed("JOB_ENTRYPOINT_COMMAND_ERROR"), ACTOR_DIED) == NODE


@pytest.mark.parametrize(
    ("lines", "node"),
    [
        (ACTOR_DIED, ALIVE),  # the cluster contradicts the log
        ([*ACTOR_DIED[:5], "The actor died because of an error in __init__"], None),
        ([*ACTOR_DIED, "Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 'mine'"], DEAD),
        (["caught: its node has died", "Traceback (most recent call last):", "ValueError: bad"], DEAD),
    ],
)
def test_driver_that_failed_itself_is_user_error(lines: list[str], node: NodeInfo | None) -> None:
    assert classified(1, lines, node).kind is EndingKind.USER_ERROR


@pytest.mark.parametrize("code", [-9, 137, -15, 143])
def test_killed_driver_is_classified_by_its_node(code: int) -> None:
    assert classified(code, [], DEAD).kind is EndingKind.PREEMPTED
    assert classified(code, [], ALIVE).kind is EndingKind.USER_ERROR
    assert ("memory" in classified(code, []).sentence) == (code in (-9, 137))


def test_ending_has_last_fifty_lines_and_last_traceback() -> None:
    first = ["Traceback (most recent call last):", '  File "a", line 1', "KeyError: 'old'"]
    last = ["Traceback (most recent call last):", '  File "b", line 2', "ValueError: new", "  with more"]
    ending = classified(1, [*first, *map(str, range(60)), *last, "bye"])
    assert ending.traceback == "\n".join(last)
    assert len(ending.last_lines) == 50 and ending.last_lines[-1] == "bye"
    assert "(ValueError: new)" in ending.sentence


KILLED = failed("JOB_SUPERVISOR_ACTOR_DIED", "The actor is dead because it was killed by `ray.kill`.")
UNKNOWN = failed("JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", "odd")
ON_LOST_NODE = JobDetails("j", "RUNNING", node_id=NODE).without_node()


@pytest.mark.parametrize(
    ("details", "node", "kind"),
    [
        (KILLED, None, EndingKind.STOPPED),
        (JobDetails("j", "STOPPED"), None, EndingKind.STOPPED),
        (failed("JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", "no place"), None, EndingKind.INFEASIBLE),
        (UNKNOWN, None, EndingKind.UNKNOWN),
        (UNKNOWN, DEAD, EndingKind.PREEMPTED),
        (JobDetails("j", "RUNNING"), None, EndingKind.UNKNOWN),
        (ON_LOST_NODE, DEAD, EndingKind.PREEMPTED),
        (ON_LOST_NODE, None, EndingKind.PREEMPTED),
        (ON_LOST_NODE, NodeInfo(NODE, is_alive=False, is_head=True), EndingKind.HEAD_LOST),
    ],
)
def test_ending_kind_depends_on_details_and_node(details: JobDetails, node: NodeInfo | None, kind: EndingKind) -> None:
    ending = classify("j", details, [], node)
    assert ending.kind is kind
    assert ("the next attempt may continue" in ending.sentence) == (
        kind in (EndingKind.PREEMPTED, EndingKind.HEAD_LOST)
    )


async def test_unreachable_cluster_leaves_ending_to_known_details() -> None:
    async with JobsApi(RayCluster("far", "http://127.0.0.1:9")) as api:
        ending = await judge_ending(api, "j", failed("JOB_ENTRYPOINT_COMMAND_ERROR", "", -9))
    assert ending.kind is EndingKind.USER_ERROR


# ---- on real clusters


class Cluster:
    """A real cluster, and the endings of its jobs."""

    def __init__(self, ray: LocalRay) -> None:
        self.ray = ray
        self.jobs = RayJobs(RayCluster("here", ray.address))

    def submit(self, job: str, entrypoint: str, **fields: object) -> None:
        self.jobs.submit_or_attach(JobRequest(job, entrypoint, **fields))  # type: ignore[arg-type]

    def started(self, job: str, flag: Path, entrypoint: str = "sleep 600", **fields: object) -> None:
        """Submit a job and wait until its entrypoint has started."""
        self.submit(job, f"touch {flag}; {entrypoint}", **fields)
        until(flag.exists)

    def ending(self, job: str) -> Ending:
        async def judged() -> Ending:
            async with JobsApi(self.jobs.cluster) as api:
                return await judge_ending(api, job, await api.details(job))

        until(lambda: (details := self.jobs.details(job)) is None or details.has_ended)
        return asyncio.run(judged())


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(shared_cluster("open"))


@pytest.mark.ray
def test_entrypoint_failure_is_explained(cluster: Cluster) -> None:
    cluster.submit("exit-3", "exit 3")
    cluster.submit("raises", "python -c '{}[1]'")
    cluster.submit("killed", "kill -9 $$")
    cluster.submit("no-command", "no-such-command")
    cluster.submit("fine", "true")
    names = ("exit-3", "raises", "killed", "no-command", "fine")
    exit_3, raises, killed, missing, fine = map(cluster.ending, names)
    assert [one.kind for one in (exit_3, raises, killed, missing)] == [EndingKind.USER_ERROR] * 4
    assert fine.kind is EndingKind.SUCCEEDED
    assert exit_3.exit_code == 3 and "'exit-3' failed with exit code 3" in exit_3.sentence
    assert raises.traceback and raises.traceback.endswith("KeyError: 1") and "(KeyError: 1)" in raises.sentence
    assert "memory" in killed.sentence and killed.exit_code == -9
    assert "PATH" in missing.sentence


@pytest.mark.ray
def test_runtime_env_failure_is_reported_with_its_cause(cluster: Cluster) -> None:
    cluster.submit("no-env", "true", runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"})
    ending = cluster.ending("no-env")
    assert ending.kind is EndingKind.RUNTIME_ENV
    assert "Failed to download" in ending.sentence and ending.last_lines


@pytest.mark.ray
def test_supervisor_killed_on_live_node_is_not_user_error(cluster: Cluster, tmp_path: Path) -> None:
    code = f"import time; time.sleep(600)  # {tmp_path}"
    cluster.started("orphan", tmp_path / "flag", shlex.join(["python", "-c", code]))
    running = [one for one in cluster.ray.stack.processes() if str(tmp_path) in " ".join(one.cmdline())]
    [supervisor] = {parent for one in running for parent in one.parents() if is_supervisor(parent)}
    supervisor.kill()
    assert cluster.ending("orphan").kind is EndingKind.START_FAILED


def driver_with_actor_on(slice_name: str, flag: Path) -> str:
    code = f"""
import pathlib, ray, time
ray.init()
@ray.remote(num_cpus=0, resources={{"{slice_name}": 0.1}})
class Host:
    def work(self):
        pathlib.Path("{flag}").touch()
        time.sleep(600)
ray.get(Host.remote().work.remote())
"""
    return shlex.join(["python", "-c", code])


@pytest.mark.ray
def test_job_or_work_on_lost_node_was_preempted(cluster: Cluster, tmp_path: Path) -> None:
    """One job runs on the node, another has only workers there.

    The host dies without notice, so Ray must detect it.
    """
    cluster.ray.start_slice(LocalSlice("doomed", "v4-8"))
    cluster.started("on-it", tmp_path / "flag", resources={"doomed": 0.1})
    cluster.submit("with-work-on-it", driver_with_actor_on("doomed", tmp_path / "working"))
    until((tmp_path / "working").exists)
    for process in cluster.ray.host_stack("doomed", 0).processes():
        process.kill()
    cluster.ray.kill_slice("doomed")  # the slice is dead already; the cluster stops expecting it
    on_it, with_work = cluster.ending("on-it"), cluster.ending("with-work-on-it")
    assert on_it.kind is EndingKind.PREEMPTED and "heartbeats" in on_it.sentence
    assert with_work.kind is EndingKind.PREEMPTED and with_work.exit_code == 1
    assert "lost the node that its work ran on" in with_work.sentence


@pytest.mark.ray
def test_job_on_drained_node_was_preempted(cluster: Cluster, tmp_path: Path) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    cluster.ray.start_slice(LocalSlice("spot", "v4-8"))
    cluster.started("drained", tmp_path / "flag", resources={"spot": 0.1})
    details = cluster.jobs.details("drained")
    assert details and details.node_id
    deadline_ms = int(time.time() * 1000) + 60_000
    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    GcsClient(address=cluster.ray.gcs_address).drain_node(details.node_id, reason, "spot notice", deadline_ms)
    cluster.ray.kill_slice("spot")
    assert cluster.ending("drained").kind is EndingKind.PREEMPTED
