"""The pod runner on real Ray: fresh processes, ranks, failures, deaths, and slices that come free again."""

from __future__ import annotations

import json
import shlex
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.runtime.marked import marked
from tradewind.rehearsal.local_ray import LocalRay, LocalSlice
from tradewind.rehearsal.processes import LocalStack

pytestmark = pytest.mark.ray

MARK = "POD_TEST"
DRIVER = """
import json, sys
from tradewind.runtime.pods import PodFailedError, run_on_slice
try:
    run_on_slice(**json.loads(sys.argv[1]))
except PodFailedError as problem:
    print("DRIVER", json.dumps([problem.host, problem.exit_code, problem.reason, list(problem.last_lines)]))
    sys.exit(7)
print("DRIVER done")
"""
TELL = """
import json, os, sys
names = ("TRADEWIND_", "TPU_WORKER_ID", "TPU_NAME", "MEGASCALE_", "JAX_", "OMP_", "GIVEN")
print("TOLD", json.dumps({"pid": os.getpid(), **{k: v for k, v in os.environ.items() if k.startswith(names)}}))
"""
PSUM = """
import os
import jax
jax.distributed.initialize(
    os.environ["TRADEWIND_COORDINATOR"],
    int(os.environ["TRADEWIND_NUM_PROCESSES"]),
    int(os.environ["TRADEWIND_PROCESS_ID"]),
)
import jax.numpy as jnp
mine = jnp.array([10.0 ** jax.process_index()])
total = jax.pmap(lambda x: jax.lax.psum(x, "hosts"), axis_name="hosts")(mine)
print(f"PSUM {jax.process_index()} of {jax.process_count()} on {jax.default_backend()}: {float(total[0])}")
"""
ONE_FAILS = """
import os, pathlib, subprocess, sys, time
ready, rank = pathlib.Path(sys.argv[1]), int(os.environ["TRADEWIND_PROCESS_ID"])
print(f"host {rank} says hello")
(ready / str(rank)).touch()
while len(list(ready.iterdir())) < int(os.environ["TRADEWIND_NUM_PROCESSES"]):
    time.sleep(0.05)
if rank == int(sys.argv[2]):
    print("about to fail")
    sys.exit(3)
subprocess.run(["sleep", "600"])
"""
SLEEP = ["sleep", "600"]


class Jobs:
    """Submits drivers to the cluster and waits for what becomes of them."""

    def __init__(self, ray_cluster: LocalRay, folder: Path) -> None:
        from ray.job_submission import JobSubmissionClient

        self.client = JobSubmissionClient(ray_cluster.address)
        self.folder = folder

    def submit(self, command: list[str], slice_type: str, **options: object) -> str:
        driver = self.folder / "driver.py"
        driver.write_text(DRIVER)
        given = json.dumps({"command": command, "slice_type": slice_type, **options})
        return self.client.submit_job(entrypoint=shlex.join(["python", str(driver), given]))

    def log(self, job: str) -> str:
        return self.client.get_job_logs(job)

    def output(self, job: str) -> str:
        """The log without the line in which Ray repeats the entrypoint."""
        return "\n".join(line for line in self.log(job).splitlines() if not line.startswith("Running entrypoint"))

    def end(self, job: str) -> tuple[str, str]:
        until(lambda: self.client.get_job_status(job).is_terminal(), f"the end of {job}", self, job)
        return str(self.client.get_job_status(job).value), self.output(job)

    def run(self, command: list[str], slice_type: str, **options: object) -> str:
        status, log = self.end(self.submit(command, slice_type, **options))
        assert status == "SUCCEEDED", log
        return log


def until(condition, what: str, jobs: Jobs | None = None, job: str = "", seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"Waited in vain for {what}. {jobs.log(job) if jobs else ''}"
        time.sleep(0.1)


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def told(text: str) -> dict[str, str]:
    (line,) = [line for line in text.splitlines() if line.startswith("TOLD ")]
    return json.loads(line.removeprefix("TOLD "))


def sleepers(mark: str) -> list[psutil.Process]:
    return [process for process in marked(MARK, mark) if process.name() == "sleep"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    stack = LocalStack(tmp_path_factory.mktemp("pods"))
    slices = [LocalSlice("pod", "v4-16"), LocalSlice("single", "v4-8")]
    ray_cluster = LocalRay(stack, num_cpus=8, slices=slices, env={"MEGASCALE_SLICE_ID": "1"})
    ray_cluster.start()
    yield ray_cluster
    ray_cluster.stop()
    assert stack.processes() == []


@pytest.fixture
def jobs(cluster, tmp_path):
    return Jobs(cluster, tmp_path)


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    for process in marked(MARK, mark):
        process.kill()


def test_every_host_runs_a_fresh_process_that_knows_its_rank(jobs, tmp_path):
    log = jobs.run(python(TELL), "v4-16", env={"GIVEN": "yes"}, log_dir=str(tmp_path / "logs"))
    hosts = [told((tmp_path / "logs" / f"host-{rank}.log").read_text()) for rank in (0, 1)]
    for rank, env in enumerate(hosts):
        assert (env["TRADEWIND_PROCESS_ID"], env["TRADEWIND_NUM_PROCESSES"]) == (str(rank), "2")
        assert (env["TPU_NAME"], env["TPU_WORKER_ID"]) == ("pod", str(rank))
        assert (env["GIVEN"], env["JAX_PLATFORMS"]) == ("yes", "cpu")
        assert not [name for name in env if name.startswith(("MEGASCALE_", "OMP_"))]
    assert hosts[0]["TRADEWIND_COORDINATOR"] == hosts[1]["TRADEWIND_COORDINATOR"]
    assert hosts[0]["pid"] != hosts[1]["pid"]
    assert told(log) == hosts[0], "the job log must hold host 0's lines as they are, and no other host's"
    assert "waiting for a free v4-16 slice; the cluster has 2 hosts of v4-16, 1 host of v4-8" in log


def test_jax_spans_the_hosts(jobs, tmp_path):
    log = jobs.run(python(PSUM), "v4-16", log_dir=f"file://{tmp_path}/logs")
    assert "PSUM 0 of 2 on cpu: 11.0" in log
    assert "PSUM 1 of 2 on cpu: 11.0" in (tmp_path / "logs" / "host-1.log").read_text()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_host_that_fails_ends_the_other_at_once(jobs, mark, tmp_path, failing):
    ready = tmp_path / "ready"
    ready.mkdir()
    job = jobs.submit(python(ONE_FAILS, str(ready), str(failing)), "v4-16", env={MARK: mark})
    status, log = jobs.end(job)
    assert marked(MARK, mark) == []
    assert (status, jobs.client.get_job_info(job).driver_exit_code) == ("FAILED", 7), log
    assert f"Host {failing} of the v4-16 slice exited with code 3; the other host was ended." in log
    last_lines = [f"host {failing} says hello", "about to fail"]
    assert f"DRIVER {json.dumps([failing, 3, 'exited with code 3', last_lines])}" in log
    assert "\nhost 0 says hello" in log
    assert "\n[host 1] host 1 says hello" in log
    assert ("\n[host 1] about to fail" in log) == (failing == 1)
    assert "(pid=" not in log and "(PodHost" not in log


def test_a_command_that_does_not_exist_fails_in_one_sentence(jobs):
    status, log = jobs.end(jobs.submit(["/no/such/program"], "v4-8"))
    assert status == "FAILED"
    assert "\nThe command cannot be run: [Errno 2] No such file or directory: '/no/such/program'" in log
    assert "Host 0 of the v4-8 slice exited with code 127." in log


def test_killing_the_driver_leaves_no_process_on_any_host(jobs, cluster, mark):
    job = jobs.submit(SLEEP, "v4-16", env={MARK: mark})
    until(lambda: len(sleepers(mark)) == 2, "both hosts", jobs, job)
    head = LocalStack(cluster.stack.root / "head").processes()
    (driver,) = [one for one in head if one.cmdline()[1:2] == [str(jobs.folder / "driver.py")]]
    driver.kill()
    until(lambda: marked(MARK, mark) == [], "the hosts' processes to end", jobs, job)
    assert jobs.end(job)[0] == "FAILED"


def test_killing_a_hosts_actor_ends_the_pod(jobs, cluster, mark):
    job = jobs.submit(SLEEP, "v4-16", env={MARK: mark})
    until(lambda: len(sleepers(mark)) == 2, "both hosts", jobs, job)
    (actor,) = [one for one in cluster.host_stack("pod", 1).processes() if "ray::PodHost" in " ".join(one.cmdline())]
    actor.kill()
    status, log = jobs.end(job)
    assert status == "FAILED"
    assert "Host 1 of the v4-16 slice was lost (ActorDiedError); the other host was ended." in log
    until(lambda: marked(MARK, mark) == [], "the hosts' processes to end")


def test_killing_a_hosts_raylet_ends_the_pod_and_a_new_slice_serves_the_next(jobs, cluster, mark):
    job = jobs.submit(SLEEP, "v4-16", env={MARK: mark})
    until(lambda: len(sleepers(mark)) == 2, "both hosts", jobs, job)
    (raylet,) = [one for one in cluster.host_stack("pod", 1).processes() if one.name() == "raylet"]
    raylet.kill()
    status, log = jobs.end(job)
    assert status == "FAILED"
    assert "Host 1 of the v4-16 slice was lost (" in log
    until(lambda: marked(MARK, mark) == [], "the hosts' processes to end")
    cluster.kill_slice("pod")
    cluster.start_slice(LocalSlice("pod", "v4-16"))
    jobs.run(python(TELL), "v4-16")


def test_a_v4_8_job_takes_the_v4_8_host_and_no_other(jobs, mark):
    first = jobs.submit(SLEEP, "v4-8", env={MARK: mark})
    until(lambda: len(sleepers(mark)) == 1, "the first job", jobs, first)
    assert sleepers(mark)[0].environ()["TPU_NAME"] == "single"
    status, log = jobs.end(jobs.submit(python(TELL), "v4-8", reservation_timeout_s=2))
    assert status == "FAILED"
    assert "NoFreeSliceError: No v4-8 slice was free within 2 s." in log
    waiting = jobs.submit(python(TELL), "v4-8")
    until(lambda: "waiting for a free v4-8 slice" in jobs.log(waiting), "the waiting job", jobs, waiting)
    jobs.client.stop_job(first)
    assert jobs.end(waiting)[0] == "SUCCEEDED"
    assert marked(MARK, mark) == []
