"""The pod runner on real Ray: new processes, ranks, incidents of each cause, and restarts."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from itertools import groupby

import pytest
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

from tests.runtime.marked import marked
from tests.runtime.pods.cluster import (
    BEATS,
    FIRST_SLICE_FAILS,
    MARK,
    ONE_RAISES,
    PRINT_ENV,
    PSUM,
    SAVES_AND_RAISES,
    SAVES_ON_NOTICE,
    STAYS_ONCE,
    WAIT_FOR,
    WORKERS_WAIT,
    RunningPod,
    drain,
    driver_on,
    printed_envs,
    python,
    start_driver,
)
from tests.support.shared_clusters import shared_cluster
from tests.support.waiting import until
from tradewind.cloud_tpu.instance_metadata import NOTICE_S
from tradewind.cloud_tpu.slice_types import SIMULATED_VARIABLE
from tradewind.rehearsal.cloud.metadata_server import HostMetadata, MetadataServer
from tradewind.rehearsal.drill.observer import observe_training
from tradewind.rehearsal.local.ray import LocalSlice
from tradewind.runtime.pods import pod as pod_module
from tradewind.runtime.pods.budgets import Budgets, PodGivenUpError
from tradewind.runtime.pods.capacity import reservation
from tradewind.runtime.pods.capacity.allocator import ScalingTimes, StandbyPool, may_hold
from tradewind.runtime.pods.capacity.slices import HostGroup
from tradewind.runtime.pods.nodes import START_S, Stall, draining_nodes, live_nodes
from tradewind.runtime.pods.on_host.host import DRIVER_TIMEOUT_S, StandbySpec
from tradewind.runtime.pods.verdicts import Cause

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster():
    """Slices a and b of type v4-16, and one v4-8.

    A test that loses a host leaves only one v4-16 slice to the tests after it.
    """
    ray_cluster = shared_cluster("pods")
    with driver_on(ray_cluster):
        yield ray_cluster


@pytest.fixture
def start_slice(cluster):
    """Start slices that end with the test, because idle hosts use CPU too."""
    names = []

    def start(name, slice_type, env_of=None):
        names.append(name)
        cluster.start_slice(LocalSlice(name, slice_type), env_of=env_of)

    yield start
    for name in names:
        cluster.kill_slice(name)


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    while RunningPod.running:
        RunningPod.running.pop().stop()
    left = marked(MARK, mark)
    for process in left:
        process.kill()
    assert left == []


def test_every_host_runs_new_process_with_its_rank(cluster, mark, tmp_path, capsys):
    pod = RunningPod(
        python(PRINT_ENV), "v4-16", mark, env={"GIVEN": "yes", "MEGASCALE_PORT": "1"}, log_dir=str(tmp_path)
    )
    assert pod.join() is None
    hosts = printed_envs(tmp_path, 2)
    for rank, env in enumerate(hosts):
        assert (env["TRADEWIND_PROCESS_ID"], env["TRADEWIND_NUM_PROCESSES"]) == (str(rank), "2")
        assert (env["TRADEWIND_SLICE_ID"], env["TRADEWIND_NUM_SLICES"]) == ("0", "1")
        assert env["TPU_WORKER_ID"] == str(rank)
        assert (env["GIVEN"], env["JAX_PLATFORMS"], env["TRADEWIND_RESTARTS"]) == ("yes", "cpu", "0")
        assert not [name for name in env if name.startswith(("MEGASCALE_", "OMP_"))]
    assert hosts[0]["TPU_NAME"] == hosts[1]["TPU_NAME"]
    assert hosts[0]["TRADEWIND_COORDINATOR"] == hosts[1]["TRADEWIND_COORDINATOR"]
    assert hosts[0]["pid"] != hosts[1]["pid"]
    log = capsys.readouterr().out
    assert log.count("ENV ") == 1, "the job log must hold host 0's lines as they are, and no other host's"
    assert [one.name for one in pod.timeline.events] == ["waiting", "reserved", "started", "done"]


def test_jax_spans_the_hosts(cluster, mark, tmp_path):
    assert RunningPod(python(PSUM), "v4-16", mark, log_dir=f"file://{tmp_path}").join() is None
    for rank in (0, 1):
        assert f"PSUM {rank} of 2 on cpu: 11.0" in (tmp_path / f"host-{rank}.log").read_text()


def test_two_slices_are_one_pod_with_megascale_variables(cluster, mark, tmp_path):
    pod = RunningPod(python(PRINT_ENV), "v4-16", mark, num_slices=2, log_dir=str(tmp_path))
    assert pod.join() is None
    hosts = printed_envs(tmp_path, 4)
    names = ("TRADEWIND_PROCESS_ID", "TRADEWIND_SLICE_ID", "MEGASCALE_SLICE_ID", "TPU_WORKER_ID")
    assert [[env[name] for name in names] for env in hosts] == [
        ["0", "0", "0", "0"],
        ["1", "0", "0", "1"],
        ["2", "1", "1", "0"],
        ["3", "1", "1", "1"],
    ]
    assert [env["TPU_NAME"] for env in hosts] == [one for one in pod.events("reserved")[0].slices for _ in (0, 1)]
    (megascale,) = {(env["MEGASCALE_COORDINATOR_ADDRESS"], env["MEGASCALE_NUM_SLICES"]) for env in hosts}
    assert megascale == (hosts[0]["TRADEWIND_COORDINATOR"].rpartition(":")[0] + ":8081", "2")
    assert {env["MEGASCALE_PORT"] for env in hosts} == {"8081"}


def test_gpu_hosts_are_distinct_and_see_their_own_gpus(cluster, mark, tmp_path):
    cluster.start_hosts("gpu", 2, num_gpus=2)
    group = HostGroup.of_hosts(2, num_cpus=1, gpus=2)
    pod = RunningPod(python(PRINT_ENV), group, mark, log_dir=str(tmp_path))
    assert pod.join() is None
    hosts = printed_envs(tmp_path, 2)
    assert [env["TRADEWIND_PROCESS_ID"] for env in hosts] == ["0", "1"]
    assert [sorted(env["CUDA_VISIBLE_DEVICES"].split(",")) for env in hosts] == [["0", "1"]] * 2
    assert len(set(pod.events("started")[0].hosts)) == 2
    assert not [name for env in hosts for name in env if name.startswith("MEGASCALE")]
    error = RunningPod(python(PRINT_ENV), HostGroup.of_hosts(3, gpus=2), mark, reservation_timeout_s=5).join()
    assert str(error) == "No 3-host GPU group was free within 5 s."


def test_gpus_of_machine_are_hidden_from_cpu_hosts(cluster, mark, tmp_path):
    assert RunningPod(python(PRINT_ENV), HostGroup.of_hosts(1), mark, log_dir=str(tmp_path)).join() is None
    [env] = printed_envs(tmp_path, 1)
    assert (env["CUDA_VISIBLE_DEVICES"], env["JAX_PLATFORMS"]) == ("", "cpu")


def test_gpu_host_without_gpu_cannot_start(cluster, mark):
    cluster.start_hosts("blind-gpu", 1, num_gpus=3, env={})
    group = HostGroup.of_hosts(1, num_cpus=1, gpus=3)
    error = RunningPod(["true"], group, mark, budgets=Budgets(max_failures=0)).join()
    assert isinstance(error, PodGivenUpError)
    assert error.incident.cause is Cause.CANNOT_START
    assert "no GPU is visible on this host" in str(error)


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.long)])
def test_repeated_exception_ends_pod_with_host_traceback(cluster, mark, tmp_path, capsys, failing):
    pod = RunningPod(python(ONE_RAISES, str(failing)), "v4-16", mark, log_dir=str(tmp_path), progress=lambda: "step-3")
    error = pod.join()
    assert isinstance(error, PodGivenUpError)
    assert (error.incident.cause, error.incident.host, error.history.failures) == (Cause.EXCEPTION, failing, 2)
    assert "ValueError: it is wrong" in error.incident.traceback
    assert "It failed twice with the same traceback, and no new checkpoint between the two." in str(error)
    assert [one.checkpoint_step for one in pod.events("failed")] == [3, 3]
    assert sorted(name for one in pod.events("reserved") for name in one.slices) == ["a", "b"]
    log = capsys.readouterr().out
    assert "raised ValueError: it is wrong; the other host was ended. This is failure 1 of 10" in log
    assert "\n[host 1] host 1 says hello" in log


def test_pod_without_steps_moves_to_free_slice(cluster, mark, tmp_path, capsys):
    pod = RunningPod(python(FIRST_SLICE_FAILS, str(tmp_path / "first")), "v4-16", mark)
    assert pod.join() is None
    first = (tmp_path / "first").read_text()
    assert [one.slice_name for one in pod.events("failed")] == [first]
    assert {first, *pod.events("reserved")[1].slices} == {"a", "b"}
    assert f"slice {first} is avoided from now on, the pod continues on another" in capsys.readouterr().out


def test_repeated_failure_on_only_slice_ends_pod(cluster, mark):
    pod = RunningPod(python("raise ValueError('it is wrong')"), "v4-8", mark)
    error = pod.join()
    assert isinstance(error, PodGivenUpError) and error.history.failures == 2
    assert len(pod.events("reserved")) == 1, "there is no other slice of this type"


def test_reported_checkpoint_missing_from_store_is_progress(cluster, mark):
    command = python(SAVES_AND_RAISES, "0", "1")  # the third start saves no checkpoint
    error = RunningPod(command, "v4-16", mark).join()
    assert isinstance(error, PodGivenUpError)
    assert error.history.failures == 3 and "It failed twice with the same traceback" in str(error)
    assert [one.progress for one in error.history.latest] == [f"step {step} was saved" for step in (10, 20, 20)]


def test_killed_process_or_lost_actor_on_live_node_is_failure(cluster, mark, tmp_path):
    pod = RunningPod(["sleep", "600"], "v4-16", mark, log_dir=str(tmp_path), budgets=Budgets(max_failures=1))
    until(lambda: len(pod.processes("sleep")) == 2, "both hosts")
    (process,) = [one for one in pod.processes("sleep") if one.environ()["TRADEWIND_PROCESS_ID"] == "1"]
    process.kill()
    pod.wait_for("started", 2)
    until(lambda: len(pod.processes("sleep")) == 2, "both hosts")
    (slice_name,) = pod.events("reserved")[-1].slices
    stack = cluster.host_stack(slice_name, 1)
    (actor,) = [one for one in stack.processes() if "ray::PodHost" in " ".join(one.cmdline())]
    actor.kill()
    error = pod.join()
    assert [one.cause for one in pod.events("failed")] == ["killed", "actor lost"]
    assert [one.host for one in pod.events("failed")] == [1, 1]
    assert "It failed 2 times, and max_failures=1. 0 preemptions, 2 failures: " in str(error)


def await_up(log):
    until(lambda: log.exists() and "up" in log.read_text(), "its start")


@pytest.mark.parametrize(
    ("thaws", "incident"), [(False, (Cause.SILENT, 1)), pytest.param(True, (Cause.KILLED, 0), marks=pytest.mark.long)]
)
def test_abort_is_reported_unless_frozen_peer_caused_it(
    cluster, mark, thaws: bool, incident: tuple[Cause, int]
) -> None:
    stall = Stall(frozen_s=18.0)
    pod = RunningPod(python(BEATS), "v4-16", mark, stall=stall, budgets=Budgets(max_failures=0))
    assert until(lambda: observe_training(cluster.stack).step, "both beats, as a drill sees them") >= 0
    pod.wait_for("first_step")
    waits, frozen = sorted(pod.processes(), key=lambda one: one.environ()["TRADEWIND_PROCESS_ID"])
    frozen.suspend()
    frozen_at = time.monotonic()
    until(lambda: time.monotonic() > frozen_at + stall.frozen_s / 2, "what waits for it to give up")
    waits.send_signal(signal.SIGABRT)
    if thaws:
        until(lambda: not waits.is_running(), "its end")
        frozen.resume()
    error = pod.join()
    assert isinstance(error, PodGivenUpError)
    assert (error.incident.cause, error.incident.host) == incident


def test_unresponsive_host_is_failure_and_slow_one_is_not(start_slice, mark, tmp_path, capsys, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(WORKERS_WAIT)
    (tmp_path / "wait").touch()
    env = {"WORKERS_WAIT_WHILE": str(tmp_path / "wait"), "PYTHONPATH": str(tmp_path)}
    start_slice("mute", "v6e-1", env_of=lambda *_: env)
    limits_s = iter([3.0])
    monkeypatch.setattr(pod_module, "start_limit_s", lambda _: next(limits_s, START_S))  # short for the first start
    monkeypatch.setattr(pod_module, "_SAY_EVERY_S", 1.0)
    pod = RunningPod(["true"], "v6e-1", mark, budgets=Budgets(max_failures=1))
    waiting = "waiting for an answer of host 0 of slice mute since"
    log = ""
    while not re.search(rf"{waiting} \d+ s, for {START_S:.0f} s at most", log):
        time.sleep(0.1)
        log += capsys.readouterr().out
        assert pod.is_running, (pod.error, pod.timeline.events, log)
    (tmp_path / "wait").unlink()
    assert pod.join() is None
    assert [one.cause for one in pod.events("failed")] == ["cannot start"]
    assert re.search(rf"{waiting} \d+ s, for 3 s at most", log)
    assert "Host 0 of the v6e-1 slice mute could not run the command (its Ray worker did not answer within 3 s)" in log


def test_host_without_chips_is_named_in_failure_and_rehearsal(start_slice, mark, capsys):
    blind = {SIMULATED_VARIABLE: ""}
    start_slice("blind", "v5p-16", env_of=lambda worker, _: blind if worker == 1 else {})
    error = RunningPod(["true"], "v5p-16", mark, budgets=Budgets(max_failures=0)).join()
    assert isinstance(error, PodGivenUpError)
    assert (error.incident.cause, error.incident.host) == (Cause.CANNOT_START, 1)
    assert "no TPU chip is visible on this host" in str(error)
    assert "the chips of these hosts are simulated" in capsys.readouterr().out


def test_killed_driver_frees_slices_and_two_drivers_get_one_each(cluster, mark, tmp_path):
    driver = start_driver(cluster, ["sleep", "600"], "v4-16", mark)
    ours = RunningPod(["sleep", "601"], "v4-16", mark)
    until(lambda: len(ours.processes("sleep")) == 4, "both pods")
    theirs = ours.processes("sleep", "600")
    slices = {one.environ()["TPU_NAME"] for one in theirs}
    assert len(slices) == 1
    assert slices | set(ours.events("reserved")[0].slices) == {"a", "b"}
    error = RunningPod(["true"], "v4-16", mark, reservation_timeout_s=5).join()
    assert str(error) == "No v4-16 slice was free within 5 s."
    driver.kill()
    driver.wait()
    until(lambda: not ours.processes("sleep", "600"), "their processes to end")
    assert RunningPod(["true"], "v4-16", mark).join() is None
    ours.stop()
    assert ours.processes() == []


def test_killed_worker_of_ray_task_frees_its_slice(cluster, mark):
    import ray

    def runs_a_pod() -> None:
        from tradewind.runtime.pods.capacity.slices import HostGroup
        from tradewind.runtime.pods.runner import run_pod

        run_pod(["sleep", "603"], HostGroup.of_slice("v4-8"), env={MARK: mark})

    task = ray.remote(num_cpus=1, max_retries=0)(runs_a_pod).remote()
    until(lambda: [one for one in marked(MARK, mark) if one.name() == "sleep"], "the task's pod")
    (worker,) = [one for one in cluster.stack.processes() if "ray::runs_a_pod" in " ".join(one.cmdline())]
    worker.kill()
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(task)
    assert RunningPod(["true"], "v4-8", mark, reservation_timeout_s=30).join() is None
    until(lambda: not marked(MARK, mark), "its processes to end")


def test_late_reservation_is_used(cluster, mark, monkeypatch):
    monkeypatch.setattr(reservation, "_LAND_S", 0.0)
    assert RunningPod(["true"], "v4-16", mark, reservation_timeout_s=30).join() is None


def test_flexible_pod_starts_small_and_grows_with_capacity(cluster, mark, tmp_path):
    other = RunningPod(python(WAIT_FOR, str(tmp_path / "go")), "v4-16", mark)
    other.wait_for("started")
    times = ScalingTimes(look_s=0.5, rescale_s=1.0)
    pod = RunningPod(
        python(SAVES_ON_NOTICE, "2"), "v4-16", mark, num_slices=[2, 1], scaling=times, log_dir=str(tmp_path)
    )
    await_up(tmp_path / "host-1.log")
    (tmp_path / "go").touch()
    assert other.join() is None
    assert pod.join() is None
    # If Ray is too slow to grow the pod, the pod restarts on the one slice.
    assert [size for size, _ in groupby(one.num_slices for one in pod.events("started"))] == [1, 2]
    assert {(one.num_slices, one.grows_to) for one in pod.events("scaled")} == {(1, 2)}
    assert (pod.events("preempted"), pod.events("failed")) == ([], [])
    assert "saved" in (tmp_path / "host-1.log").read_text()


def test_drained_node_allows_checkpoint_and_is_preemption(cluster, mark, tmp_path, capsys):
    budgets = Budgets(max_preemptions=0)
    pod = RunningPod(python(SAVES_ON_NOTICE), "v4-8", mark, log_dir=str(tmp_path), budgets=budgets)
    await_up(tmp_path / "host-0.log")
    (node,) = [one for one in live_nodes() if one.slice_name == "single"]
    drain(cluster, node.id, seconds=20)
    error = pod.join()
    assert isinstance(error, PodGivenUpError)
    assert (error.incident.cause, error.incident.exit_code) == (Cause.DRAINED, 76)
    assert error.history.preemptions == 1
    assert "It was preempted once, and max_preemptions=0." in str(error)
    assert "saved" in (tmp_path / "host-0.log").read_text()
    log = capsys.readouterr().out
    assert "host 0 of slice single is about to go: its Ray node is being drained; the processes have" in log
    error = RunningPod(["true"], "v4-8", mark, reservation_timeout_s=5).join()
    assert str(error) == "No v4-8 slice was free within 5 s.", "a slice that is being drained is not taken"


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    server = MetadataServer("rehearsal", "us-central2-b")
    server.start()
    yield server
    server.stop()


def test_preempted_host_drains_its_own_node(start_slice, metadata, mark, tmp_path):
    metadata_of_host = HostMetadata("noticed", 0, "v6e-4", {}, {}, is_preemptible=True)
    start_slice(
        "noticed",
        "v6e-4",
        env_of=lambda _, ip: {"GCE_METADATA_HOST": metadata.add_host("noticed.0", ip, metadata_of_host)},
    )
    (node,) = [one for one in live_nodes() if one.slice_name == "noticed"]
    budgets = Budgets(max_preemptions=0)
    pod = RunningPod(python(SAVES_ON_NOTICE), "v6e-4", mark, log_dir=str(tmp_path), budgets=budgets)
    await_up(tmp_path / "host-0.log")
    metadata.preempt_slice("noticed")
    deadline = until(lambda: draining_nodes().get(node.id), "the drain")
    assert 0 < deadline - time.time() <= NOTICE_S
    error = pod.join()
    assert isinstance(error, PodGivenUpError)
    assert (error.incident.cause, error.incident.exit_code) == (Cause.PREEMPTED, 76)
    assert "saved" in (tmp_path / "host-0.log").read_text()


def test_lost_host_ends_its_slice_and_pod_moves_to_standbys(cluster, mark, tmp_path, capsys):
    (tmp_path / "stays.py").write_text(STAYS_ONCE)
    command = [sys.executable, "-u", "-m", "stays"]
    pod = RunningPod(command, "v4-16", mark, env={"PYTHONPATH": str(tmp_path)}, log_dir=str(tmp_path))
    until(lambda: len(pod.processes(*command)) == 2, "both hosts")
    waiting = [*command[:3], "tradewind.runtime.pods.on_host.standby_process"]
    spare = until(lambda: len(found := pod.processes(*waiting)) == 2 and found, "the spare processes")
    (lost,) = pod.events("reserved")[0].slices
    cluster.kill_host(lost, 1)
    assert pod.join() is None
    (preempted,) = pod.events("preempted")
    assert (preempted.cause, preempted.slice_name, preempted.host) == ("node died", lost, 1)
    assert pod.events("failed") == []
    assert pod.events("reserved")[1].slices != (lost,)
    hosts = printed_envs(tmp_path, 2, "host-{}.1.log")
    assert [(env["TRADEWIND_RESTARTS"], env["TRADEWIND_PROCESS_ID"]) for env in hosts] == [("1", "0"), ("1", "1")]
    assert {int(env["pid"]) for env in hosts} == {one.pid for one in spare}
    log = capsys.readouterr().out
    assert f"Host 1 of the v4-16 slice {lost} was lost: its Ray node died; the other host was ended." in log
    assert "This is preemption 1 of 1,000,000; continuing from the newest checkpoint" in log


def test_standbys_leave_free_slice_when_holding_is_disallowed(cluster, mark):
    allowed = threading.Event()
    allowed.set()
    wanted = StandbySpec((sys.executable, "-u", "-m", "json.tool"), {MARK: mark})
    spares = StandbyPool(HostGroup.of_slice("v4-16"), wanted, set, DRIVER_TIMEOUT_S, may_hold=allowed.is_set)
    until(lambda: spares.slice_names() and marked(MARK, mark), "the spare processes")
    allowed.clear()
    until(lambda: not spares.slice_names() and not marked(MARK, mark), "their end")
    spares.close()


def test_autoscaled_slices_are_not_held_unless_step_requests_it(cluster):
    assert [may_hold(wanted)() for wanted in (None, True, False)] == [True, True, False]
    report = json.dumps({"autoscaler_report": {"active_nodes": {"ray.head.default": 1}}})

    def has_autoscaler():
        _internal_kv_put("__autoscaling_status", report, overwrite=True)  # Ray's monitor overwrites the report
        return not may_hold(None)()

    until(has_autoscaler, "the report to be read")
    assert may_hold(True)()
    _internal_kv_del("__autoscaling_status")


@pytest.mark.long
def test_pod_continues_on_remaining_slices_and_adds_new_one(cluster, start_slice, mark):
    for name in ("c", "d"):
        start_slice(name, "v6e-8")
    times = ScalingTimes(look_s=0.5, rescale_s=1.0)
    pod = RunningPod(python(SAVES_ON_NOTICE), "v6e-8", mark, num_slices=[2, 1], scaling=times)
    pod.wait_for("started", 1)
    cluster.kill_slice("d")
    pod.wait_for("started", 2)
    start_slice("e", "v6e-8")
    until(lambda: pod.events("started")[-1].num_slices == 2, "its growth")
    # If Ray is too slow to grow the pod, the pod restarts on the one slice.
    starts = [sorted(one.slices) for one in pod.events("started")]
    assert [slices for slices, _ in groupby(starts)] == [["c", "d"], ["c"], ["c", "e"]]
    assert [one.slice_name for one in pod.events("preempted")] == ["d"]
    assert pod.events("scaled") and pod.events("failed") == []
