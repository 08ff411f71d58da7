"""The sweep kills orphans on hosts of free slices only, and changes nothing in a dry run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.shared_clusters import shared_cluster
from tests.support.waiting import limit_s, until
from tradewind.rehearsal.local.ray import LocalRay, LocalSlice
from tradewind.runtime.host_sweep import free_slices, sweep_host
from tradewind.runtime.pods.nodes import Node
from tradewind.runtime.pods.on_host import host, orphans
from tradewind.runtime.pods.process_env import Accelerator

SLICE = "ray.io/tpu-slice-name"
Usage = namedtuple("Usage", "total used free")


def node(name: str, slice_name: str, **resources: float) -> Node:
    return Node(name, f"10.0.0.{name}", 1, {SLICE: slice_name}, {"TPU": 4.0, **resources})


HOSTS = [node("1", "a", **{"TPU-v4-16-head": 1.0}), node("2", "a"), node("3", "b", **{"TPU-v4-8-head": 1.0})]
ALL_FREE = {"1": {"TPU": 4.0, "TPU-v4-16-head": 1.0}, "2": {"TPU": 4.0}, "3": {"TPU": 4.0, "TPU-v4-8-head": 1.0}}


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        ({}, {"a", "b"}),
        ({"2": {"TPU": 3.0}}, {"b"}),  # a job uses one chip of one host
        ({"1": {"TPU": 4.0}}, {"b"}),  # a user reserved only the head resource of the slice
        ({"3": {}}, {"a"}),  # Ray does not report free chips
    ],
)
def test_slice_is_free_when_no_host_is_in_use(taken: dict[str, Any], free: set[str]) -> None:
    assert free_slices(HOSTS, ALL_FREE | taken) == free


def test_host_outside_slices_is_never_free() -> None:
    assert free_slices([Node("9", "10.0.0.9", 1, {}, {"TPU": 4.0})], {"9": {"TPU": 4.0}}) == set()


@pytest.fixture
def chips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host with a lock file, whose only chip is a regular file."""
    device = tmp_path / "accel0"
    device.touch()
    lock = tmp_path / "lockfile"
    lock.touch()
    monkeypatch.setattr(orphans, "chip_devices", lambda: [str(device)])
    monkeypatch.setattr(orphans, "LOCKFILE", str(lock))
    monkeypatch.setattr(host, "accelerator", lambda: Accelerator.TPU)
    yield device


def holder(device: Path) -> subprocess.Popen[bytes]:
    started = subprocess.Popen([sys.executable, "-c", f"f = open({str(device)!r}); print(flush=True); input()"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert started.stdout is not None and started.stdout.readline() == b"\n"
    return started


@pytest.mark.slow
def test_sweep_kills_chip_holder_and_removes_lock_file_if_free(chips: Path) -> None:
    process = holder(chips)
    dry = sweep_host("10.0.0.1", "a", True, True, 0.0)
    in_use = sweep_host("10.0.0.1", "a", False, False, 0.0)
    assert process.poll() is None and Path(orphans.LOCKFILE).exists()
    assert dry.done == (f"would end process {process.pid} (python)", "would remove the lock file")
    assert (in_use.use, in_use.done) == ("in use", ())
    report = sweep_host("10.0.0.1", "a", True, False, 0.0)
    assert process.wait(limit_s()) == -signal.SIGKILL and not Path(orphans.LOCKFILE).exists()
    assert report.done == (f"ended process {process.pid} (python)", "removed the lock file")
    assert (report.use, report.problem) == ("free", "")
    assert sweep_host("10.0.0.1", "a", True, False, 0.0).done == ()


def test_undeletable_lock_file_is_problem(chips: Path) -> None:
    Path(orphans.LOCKFILE).unlink()
    Path(orphans.LOCKFILE).mkdir()  # even root cannot unlink a folder
    report = sweep_host("10.0.0.1", "a", True, False, 0.0)
    assert report.done == () and "cannot be deleted" in report.problem


def test_nearly_full_disk_is_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100e9, 96e9, 4e9))
    assert sweep_host("10.0.0.1", "a", False, False, 5.0).problem == "4.0 % of the disk are free (4.0 GB)"
    assert sweep_host("10.0.0.1", "a", False, False, 4.0).problem == ""


SWEEP = """
import json, ray, sys, time
from tradewind.runtime.host_sweep import sweep_hosts

ray.init(log_to_driver=False)
on_busy = {"node:" + sys.argv[1]: 0.01, "TPU": 1}
job = ray.remote(lambda: __import__("threading").Event().wait()).options(num_cpus=0, resources=on_busy).remote()
found = []
for dry in json.loads(sys.argv[3]):
    while ray.available_resources().get("TPU") != ray.cluster_resources()["TPU"] - 1:
        time.sleep(0.1)  # the sweep before takes chips too, until Ray knows its end
    found.append(sweep_hosts(dry_run=dry, answer_s=float(sys.argv[2])))
print(json.dumps(found))
"""


def address(ray: LocalRay, slice_name: str) -> str:
    return next(host.ip for host in ray.status().nodes if host.labels.get(SLICE) == slice_name)


def freeze(ray: LocalRay, slice_name: str) -> None:
    """Suspend the host's raylet; the Ray head needs some seconds to detect it."""
    [raylet] = [process for process in ray.host_stack(slice_name, 0).processes() if process.name() == "raylet"]
    raylet.suspend()


def sweep(ray: LocalRay, busy: str, answer_s: float, *dry: bool) -> list[list[dict[str, Any]]]:
    """Sweep once per entry of ``dry`` while a job uses one chip of ``busy``; return the reports."""
    env = {**os.environ, "RAY_ADDRESS": ray.gcs_address, "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", SWEEP, busy, str(answer_s), json.dumps(dry)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def cluster() -> Iterator[LocalRay]:
    """A cluster with slices a and b; the test may end slice b."""
    ray = shared_cluster("slices")
    yield ray
    ray.kill_slice("b")
    until(lambda: "b" not in ray.status().slices, "Ray to notice the end of b")
    ray.start_slice(LocalSlice("b", "v4-8"))


@pytest.mark.ray
def test_cluster_sweep_reports_unresponsive_host(cluster: LocalRay) -> None:
    ray = cluster
    busy, free = address(ray, "a"), address(ray, "b")
    dead = subprocess.Popen(["true"])
    orphan_marks = {address: orphans.process_mark(address, dead.pid) for address in (busy, free)}
    dead.wait()
    left = {
        address: subprocess.Popen(["sleep", "600"], env={orphans.MARK: mark, "PATH": os.environ["PATH"]})
        for address, mark in orphan_marks.items()
    }
    dry, real = sweep(ray, busy, 60.0, True, False)
    assert [(row["slice"], row["use"]) for row in dry] == [("a", "in use"), ("b", "free")]
    assert [row["done"] for row in dry] == [[], [f"would end process {left[free].pid} (sleep)"]]
    assert [row["done"] for row in real] == [[], [f"ended process {left[free].pid} (sleep)"]]
    assert left[free].wait(limit_s()) == -signal.SIGKILL and left[busy].poll() is None
    left[busy].kill()
    left[busy].wait()
    freeze(ray, "b")
    [real] = sweep(ray, busy, 3.0, False)
    assert [(row["slice"], row["use"]) for row in real] == [("a", "in use"), ("b", "does not answer")]
    assert real[1]["problem"].startswith("Ray calls it alive, but no task has started there for 3 s")
    ray.kill_host("b", 0)
    [real] = sweep(ray, busy, 3.0, False)
    assert real[0]["use"] == "in use"
    assert [row["use"] for row in real[1:]] in (["gone"], [])  # Ray may have removed the node already
