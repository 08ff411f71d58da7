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
from tradewind.ray_jobs.follow.stopping import stop_job
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


def of_entrypoint(exit_code: int, lines: list[str], node: NodeInfo | None = None) -> Ending:
    return classify("j", failed("JOB_ENTRYPOINT_COMMAND_ERROR", "", exit_code), lines, node)


# ---- pure


def test_an_ending_travels_as_json() -> None:
    ending = Ending(EndingKind.USER_ERROR, "It failed.", 3, "Traceback", ("one", "two"))
    assert Ending.from_json(json.loads(json.dumps(ending.to_json()))) == ending


def test_a_driver_that_a_lost_node_ended_was_preempted() -> None:
    assert of_entrypoint(1, ACTOR_DIED).kind is EndingKind.PREEMPTED
    ending = of_entrypoint(1, ACTOR_DIED, DEAD)
    assert ending.kind is EndingKind.PREEMPTED and "missed heartbeats" in ending.sentence
    assert node_in_question(failed("JOB_ENTRYPOINT_COMMAND_ERROR"), ACTOR_DIED) == NODE


@pytest.mark.parametrize(
    ("lines", "node"),
    [
        (ACTOR_DIED, ALIVE),  # the cluster contradicts the log
        (
            ["Traceback (most recent call last):", *ACTOR_DIED[:4], "  The actor died because of an error in __init__"],
            None,
        ),
        ([*ACTOR_DIED, "Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 'mine'"], DEAD),
        (["caught: its node has died", "Traceback (most recent call last):", "ValueError: bad"], DEAD),
    ],
)
def test_a_driver_that_failed_by_itself_stays_a_user_error(lines: list[str], node: NodeInfo | None) -> None:
    assert of_entrypoint(1, lines, node).kind is EndingKind.USER_ERROR


@pytest.mark.parametrize("code", [-9, 137, -15, 143])
def test_a_killed_driver_is_judged_by_its_node(code: int) -> None:
    assert of_entrypoint(code, [], DEAD).kind is EndingKind.PREEMPTED
    assert of_entrypoint(code, [], ALIVE).kind is EndingKind.USER_ERROR
    assert ("memory" in of_entrypoint(code, []).sentence) == (code in (-9, 137))


def test_the_last_fifty_lines_and_the_last_traceback_are_kept() -> None:
    first = ["Traceback (most recent call last):", '  File "a", line 1', "KeyError: 'old'"]
    last = ["Traceback (most recent call last):", '  File "b", line 2', "ValueError: new", "  with more"]
    ending = of_entrypoint(1, [*first, *map(str, range(60)), *last, "bye"])
    assert ending.traceback == "\n".join(last)
    assert len(ending.last_lines) == 50 and ending.last_lines[-1] == "bye"
    assert "(ValueError: new)" in ending.sentence


def test_a_supervisor_that_a_person_killed_was_stopped() -> None:
    died = failed("JOB_SUPERVISOR_ACTOR_DIED", "The actor is dead because it was killed by `ray.kill`.")
    assert classify("j", died).kind is EndingKind.STOPPED


def test_unschedulable_job_is_infeasible_and_others_unknown() -> None:
    assert classify("j", failed("JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", "no place")).kind is EndingKind.INFEASIBLE
    unknown = failed("JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", "odd")
    assert classify("j", unknown).kind is EndingKind.UNKNOWN
    assert classify("j", unknown, [], DEAD).kind is EndingKind.PREEMPTED
    assert classify("j", JobDetails("j", "RUNNING")).kind is EndingKind.UNKNOWN


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
        until(lambda: (found := self.jobs.details(job)) is None or found.has_ended)
        return asyncio.run(self._judge(job))

    async def _judge(self, job: str) -> Ending:
        async with JobsApi(self.jobs.cluster) as api:
            return await judge_ending(api, job, await api.details(job))


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(shared_cluster("open"))


@pytest.mark.ray
def test_what_the_entrypoint_did_is_told(cluster: Cluster) -> None:
    cluster.submit("exit-3", "exit 3")
    cluster.submit("raises", "python -c '{}[1]'")
    cluster.submit("killed", "kill -9 $$")
    cluster.submit("no-command", "no-such-command")
    cluster.submit("fine", "true")
    exit_3, raises, killed, missing, fine = (
        cluster.ending(job) for job in ("exit-3", "raises", "killed", "no-command", "fine")
    )
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
def test_a_stopped_job_is_told_as_stopped(cluster: Cluster, tmp_path: Path) -> None:
    cluster.started("stopped", tmp_path / "flag")

    async def stop() -> None:
        async with JobsApi(cluster.jobs.cluster) as api:
            await stop_job(api, "stopped", print)

    asyncio.run(stop())
    assert cluster.ending("stopped").kind is EndingKind.STOPPED


@pytest.mark.ray
def test_supervisor_killed_on_live_node_is_not_user_error(cluster: Cluster, tmp_path: Path) -> None:
    code = f"import time; time.sleep(600)  # {tmp_path}"
    cluster.started("orphan", tmp_path / "flag", shlex.join(["python", "-c", code]))
    at_work = [one for one in cluster.ray.stack.processes() if str(tmp_path) in " ".join(one.cmdline())]
    [supervisor] = {parent for one in at_work for parent in one.parents() if is_supervisor(parent)}
    supervisor.kill()
    assert cluster.ending("orphan").kind is EndingKind.START_FAILED


def driver_with_an_actor_on(slice_name: str, flag: Path) -> str:
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
def test_jobs_that_lose_a_node_were_preempted(cluster: Cluster, tmp_path: Path) -> None:
    """One job runs on the node, another has only workers there.

    The host dies without notice, so Ray must detect it.
    """
    cluster.ray.start_slice(LocalSlice("doomed", "v4-8"))
    cluster.started("on-it", tmp_path / "flag", resources={"doomed": 0.1})
    cluster.submit("with-work-on-it", driver_with_an_actor_on("doomed", tmp_path / "working"))
    until((tmp_path / "working").exists)
    for process in cluster.ray.host_stack("doomed", 0).processes():
        process.kill()
    cluster.ray.kill_slice("doomed")  # the slice is dead already; the cluster stops expecting it
    on_it, with_work = cluster.ending("on-it"), cluster.ending("with-work-on-it")
    assert on_it.kind is EndingKind.PREEMPTED and "heartbeats" in on_it.sentence
    assert with_work.kind is EndingKind.PREEMPTED and with_work.exit_code == 1
    assert "lost the node that its work ran on" in with_work.sentence


@pytest.mark.ray
def test_a_drained_node_takes_its_jobs_with_it_as_preempted(cluster: Cluster, tmp_path: Path) -> None:
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


@pytest.mark.ray
def test_unreachable_cluster_leaves_ending_to_known_details() -> None:
    async def judged() -> Ending:
        async with JobsApi(RayCluster("far", "http://127.0.0.1:9")) as api:
            return await judge_ending(api, "j", failed("JOB_ENTRYPOINT_COMMAND_ERROR", "", -9))

    assert asyncio.run(judged()).kind is EndingKind.USER_ERROR
