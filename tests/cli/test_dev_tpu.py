"""Development sessions: reserve a slice, use it from another terminal, release it, also after a kill.

The tests use a real Ray with hosts of a slice, a real ``sshd``, and commands as separate processes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.fleet.loopback import LoopbackFleet, loopback_fleet
from tests.runtime.marked import descendants_named
from tests.serving import tiny_engine
from tests.support.waiting import until
from tradewind.cli.fleet.lifecycle import cluster_nodes
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@dataclass
class DevCluster:
    """One cluster with one slice of two hosts."""

    ray: LocalRay
    fleet: LoopbackFleet
    folder: Path

    @property
    def heartbeats(self) -> Path:
        """Return the folder of heartbeats and user files on the head and the hosts."""
        return self.ray.stack.root / "home" / ".tradewind" / "dev"

    def free_chips(self) -> float | None:
        """Return the free chips in Ray's delayed report, or None if the report lacks a host."""
        nodes = cluster_nodes(RayCluster("here", self.ray.address, token=self.ray.token))
        hosts = [node for node in nodes if node.is_alive and node.total.get("TPU")]
        free = [node.free["TPU"] for node in hosts if node.free is not None]
        return sum(free) if len(free) == len(hosts) == 2 else None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("dev")
    stack = LocalStack(folder / "stack")
    ray = LocalRay(stack, num_cpus=2, slices=[LocalSlice("one", "v4-16")])
    try:
        ray.start()
        found = [node for node in ray.status().nodes if node.labels.get("ray.io/tpu-slice-name") == "one"]
        addresses = [node.ip for node in sorted(found, key=lambda node: node.labels["ray.io/tpu-worker-id"])]
        with (
            loopback_fleet(folder / "fleet", home=ray.stack.root / "home", addresses=addresses) as fleet,
            pytest.MonkeyPatch.context() as patch,
        ):
            fleet.google.secrets.put("projects/my-project/secrets/RAY_AUTH_TOKEN", ray.token)
            patch.setenv("TRADEWIND_HEAD_DASHBOARD", ray.address.removeprefix("http://"))
            patch.setenv("USER", "ada")
            patch.setenv("LOGNAME", "ada")
            patch.setenv("XDG_STATE_HOME", str(folder / "state"))
            (folder / "tree").mkdir()
            yield DevCluster(ray, fleet, folder / "tree")
    finally:
        stack.stop()


@contextmanager
def running(
    cluster: DevCluster, *words: str, env: dict[str, str] | None = None, group: str = "dev-tpu"
) -> Iterator[subprocess.Popen[str]]:
    """Run ``tradewind dev-tpu`` in the user's project folder; its output is in ``stdout``."""
    command = [sys.executable, "-u", "-m", "tradewind.cli.main", group, *words]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=cluster.folder, env=env, text=True, **streams)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], what: str) -> list[str]:
    """Return the lines up to the one that contains ``what``."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if what in line:
            return lines
    pytest.fail(f"The output lacks {what!r}: {''.join(lines)}")


def run_to_end(cluster: DevCluster, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    with running(cluster, *words, env=env) as process:
        out, _ = process.communicate(timeout=300)
        return process.returncode, out


def sleepers(cluster: DevCluster, seconds: str) -> Sequence[psutil.Process]:
    home, found = str(cluster.ray.stack.root / "home"), []
    for process in psutil.process_iter():
        try:
            if process.cmdline() == ["sleep", seconds] and process.environ().get("HOME") == home:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.long
def test_slice_is_exclusive_to_its_holder_and_released(cluster: DevCluster) -> None:
    (cluster.folder / "train.py").write_text("import os; print('trained on', os.environ['TPU'], os.getcwd()[-4:])")
    assert "You hold no slice called ada" in run_to_end(cluster, "execute", "--", "true")[1]
    with running(cluster, "allocate", "v4-16") as holder:
        read_until(holder, "Slice one, 2 hosts, is yours until Ctrl-C")
        until(lambda: cluster.free_chips() == 0, "the chips to be taken")
        code, out = run_to_end(cluster, "allocate", "v4-16", "--name", "second")
        assert code == 1 and "No v4-16 slice is free: all 1 are in use. Wait for one with --wait SECONDS" in out
        code, out = run_to_end(cluster, "allocate", "v4-16")
        assert code == 1 and "already holds a slice called ada of cluster here for you" in out
        code, out = run_to_end(cluster, "execute", "-e", "TPU=v4", "--", "python", "train.py")
        assert code == 0, out
        assert "one:0 | trained on v4 tree" in out and "one:1 | trained on v4 tree" in out
        assert run_to_end(cluster, "execute", "--host", "1", "--no-sync", "--", "exit 7")[0] == 7
        state = {**os.environ, "XDG_STATE_HOME": str(cluster.folder / "another-machine")}
        code, out = run_to_end(cluster, "execute", "--", "true", env=state)
        assert code == 1 and "says that it holds one for you, as any job can say: add --job with its id" in out
        job = re.search(r"Job (dev-tpu-ada-ada-\S+) says", out)
        assert job and run_to_end(cluster, "execute", "--job", job[1], "--", "true", env=state)[0] == 0
        with running(cluster, "connect") as shell:  # its input is empty, so the shell exits at once
            assert shell.wait(300) == 0
        holder.send_signal(signal.SIGINT)
        assert "Slice one was given back." in holder.communicate(timeout=120)[0] and holder.returncode == 130
    until(lambda: cluster.free_chips() == 8, "the chips")


def test_the_slice_is_free_and_clear_when_its_holder_is_killed(cluster: DevCluster) -> None:
    with running(cluster, "allocate", "v4-16", "--heartbeat-timeout", "5") as holder:
        read_until(holder, "is yours until Ctrl-C")
        script = "nohup setsid sleep 4242 > /dev/null 2>&1 & echo left behind; wait"
        with running(cluster, "execute", "--host", "0", "--", script) as command:
            read_until(command, "left behind")
            until(lambda: sleepers(cluster, "4242"), "what the command starts")
            until(lambda: cluster.free_chips() == 0, "the chips to be taken")
            holder.send_signal(signal.SIGKILL)
            until(lambda: cluster.free_chips() == 8, "the chips")
            assert not sleepers(cluster, "4242"), "it would hold the chips that others get"
            assert command.wait(120) != 0
    until(lambda: not list(cluster.heartbeats.iterdir()), "the end of the holder, which leaves nothing")


@pytest.mark.long
def test_frozen_holder_loses_slice_and_reports_it_on_resume(cluster: DevCluster) -> None:
    with running(cluster, "allocate", "v4-16", "--heartbeat-timeout", "5") as holder:
        read_until(holder, "is yours until Ctrl-C")
        until(lambda: cluster.free_chips() == 0, "the chips to be taken")
        holder.send_signal(signal.SIGSTOP)
        until(lambda: cluster.free_chips() == 8, "the chips")
        holder.send_signal(signal.SIGCONT)
        read_until(holder, "Slice one is no longer yours")
        assert holder.wait(120) == 1
    until(lambda: not list(cluster.heartbeats.iterdir()), "all heartbeats to be gone, also those sent after the thaw")


@pytest.mark.long
def test_lost_connection_keeps_slice_and_killed_job_frees_it(cluster: DevCluster) -> None:
    with running(cluster, "allocate", "v4-16", "--heartbeat-timeout", "60") as holder:
        read_until(holder, "is yours until Ctrl-C")
        (job,) = (process for process in psutil.process_iter(["cmdline"]) if is_holders_job(process))
        (heartbeat,) = cluster.heartbeats.glob("*.alive")
        connections = descendants_named("ssh", holder.pid)
        assert connections
        for connection in connections:
            connection.kill()
        read_until(holder, "Trying again: the slice is given back if that lasts.")
        lost_at = time.time_ns()
        until(lambda: heartbeat.stat().st_mtime_ns > lost_at, "a heartbeat over another connection")
        assert job.is_running() and holder.poll() is None and cluster.free_chips() == 0
        script = "nohup setsid sleep 4343 > /dev/null 2>&1 & echo left"
        with running(cluster, "execute", "--host", "0", "--", script) as command:
            read_until(command, "left")
            until(lambda: sleepers(cluster, "4343"), "what the command starts")
            job.kill()
            read_until(holder, "Slice one is no longer yours")
            assert holder.wait(120) == 1
    until(lambda: cluster.free_chips() == 8, "the chips")
    with running(cluster, "allocate", "v4-16") as again:
        read_until(again, "is yours until Ctrl-C")
        assert not sleepers(cluster, "4343"), "it would hold the chips"
        again.send_signal(signal.SIGINT)
        assert again.wait(120) == 130
    until(lambda: cluster.free_chips() == 8, "the chips")


def is_holders_job(process: psutil.Process) -> bool:
    """Return whether the process is the job that holds the slice, not its launcher."""
    words = process.info["cmdline"] or []
    return "tradewind.runtime.dev_slice" in words and not any(word.endswith("sh") for word in words[:1])


@pytest.mark.long
def test_a_change_of_the_folder_is_run_again(cluster: DevCluster) -> None:
    (cluster.folder / "train.py").write_text("import time; print('version 1'); time.sleep(3600)")
    with running(cluster, "allocate", "v4-16", "--name", "mine") as holder:
        read_until(holder, "is yours until Ctrl-C")
        words = ("watch", "--name", "mine", "--host", "0", "--debounce", "0.2", "--", "python", "train.py")
        with running(cluster, *words) as watching:
            read_until(watching, "version 1")
            (cluster.folder / "train.py").write_text("print('version 2')")
            assert not any("version 1" in line for line in read_until(watching, "version 2"))
            read_until(watching, "The command ended with exit code 0. Waiting for a change")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(120) == 0
        os.kill(holder.pid, signal.SIGTERM)
        assert holder.wait(120) == 143
    until(lambda: cluster.free_chips() == 8, "the chips")


@pytest.mark.long
def test_served_model_is_reached_by_tunnels_that_are_renewed(cluster: DevCluster) -> None:
    """With a token for Ray, and hosts that only ``ssh`` reaches."""
    engine = f"{sys.executable} {tiny_engine.__file__} --port {{port}}"
    words = (str(cluster.folder), "--cluster", "here", "--engine-command", engine, "--num-cpus", "0.1")
    with running(cluster, *words, group="serve") as command:
        lines = read_until(command, "curl")[-3:]
        assert re.search(r"export OPENAI_BASE_URL=http://127\.0\.0\.1:\d+/v1", lines[0])
        ask = ["sh", "-c", "".join(lines)]
        answer = tiny_engine.answer_text("Once upon a time")
        assert answer in subprocess.run(ask, capture_output=True, text=True).stdout
        for tunnel in descendants_named("ssh", command.pid):
            tunnel.kill()
        until(lambda: answer in subprocess.run(ask, capture_output=True, text=True).stdout, "another tunnel")
        command.send_signal(signal.SIGINT)
        ended, _ = command.communicate(timeout=120)
        assert command.returncode == 0 and "Ending pool" in ended and "may continue" not in ended
