"""A pod host manages its process. These tests use the actor's class without Ray; test_pod uses Ray."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import ray

from tests.runtime.marked import MARK, fencing_time, marked
from tests.support.waiting import until
from tradewind.cloud_tpu.instance_metadata import MAINTENANCE_S
from tradewind.cloud_tpu.slice_types import SIMULATED_VARIABLE
from tradewind.machine import boot_time
from tradewind.rehearsal.cloud.metadata_server import HostMetadata, MetadataServer
from tradewind.runtime.pods.on_host import orphans
from tradewind.runtime.pods.on_host.host import LAST_LINES, Launch, PodHost, Report
from tradewind.runtime.pods.on_host.preemption_notice import Notice
from tradewind.runtime.pods.process_env import Accelerator, ProcessRank, process_env
from tradewind.serialization.masking import NAMES_VARIABLE

pytestmark = pytest.mark.slow


@pytest.fixture
def host() -> Iterator[PodHost]:
    host = PodHost()
    yield host
    host.end()  # stop the host's own threads too


def _launch(*command: str, rank: int = 0, log_dir: str | None = None, mark: str = "", **env: str) -> Launch:
    place = ProcessRank(rank=rank, num_processes=2, coordinator="127.0.0.1:1")
    return Launch(command, {MARK: mark, **env}, place, log_dir, f"host-{rank}.log")


def _python(code: str, **options: Any) -> Launch:
    return _launch(sys.executable, "-u", "-c", code, **options)


def _run(launch: Launch) -> tuple[list[str], Report]:
    """Run the process to its end; return its lines and the report with its exit code."""
    host = PodHost()
    host.start(launch)
    lines: list[str] = []
    while (report := host.poll(5.0, eager=launch.place.rank == 0)).exit_code is None:
        lines += report.lines
    return [*lines, *report.lines, *host.end().lines], report


def _await_line(host: PodHost, line: str) -> None:
    assert host.poll(30.0, eager=True).lines == (line,)


def test_host_0_reports_every_line_and_others_their_last():
    code = "import sys; [print(i) for i in range(900)]; print('oops', file=sys.stderr); sys.exit(4)"
    lines, report = _run(_python(code))
    assert (lines, report.exit_code) == ([*map(str, range(900)), "oops"], 4)
    assert _run(_python(code, rank=1))[0][-LAST_LINES:] == lines[-LAST_LINES:]


def test_log_keeps_bytes_of_process_on_disk_and_in_object_store(tmp_path):
    code = "print('whole', end='\\r'); print('output')"
    _run(_python(code, rank=3, log_dir=str(tmp_path / "new")))
    assert (tmp_path / "new" / "host-3.log").read_bytes() == b"whole\routput\n"
    _run(_python(code, rank=1, log_dir="memory://pods/attempt-1/"))
    assert fsspec.filesystem("memory").cat("/pods/attempt-1/host-1.log") == b"whole\routput\n"


def test_end_of_host_ends_its_process(host):
    host.start(_launch("sh", "-c", "echo up; sleep 600"))
    _await_line(host, "up")
    assert (host.end().exit_code, host.end().was_ended) == (-15, True)


def test_host_kill_ends_signal_ignoring_and_detached_processes(host, mark):
    host.start(_launch("sh", "-c", "trap '' TERM; setsid sleep 601 & echo up; sleep 600", mark=mark))
    _await_line(host, "up")
    until(lambda: len([one for one in marked(MARK, mark) if one.name() == "sleep"]) == 2, "both to run")
    report = host.kill()
    assert (report.exit_code, report.was_ended) == (-9, True)
    assert marked(MARK, mark) == []


def test_host_ends_process_when_driver_stops_polling(mark):
    host = PodHost(driver_timeout_s=3.0)
    host.start(_launch("sleep", "600", mark=mark))
    started_at = boot_time()
    while boot_time() < started_at + 4.0:
        assert host.poll(0.2, eager=False).exit_code is None
    until(lambda: not marked(MARK, mark), "the process to end")
    host.end()  # stop the host's own work: the next host in this process has the same mark


def test_old_lease_ends_host_process_despite_driver_polls(mark):
    host = PodHost(driver_timeout_s=2.0)
    renewed_at = host.probe().now
    host.start(replace(_launch("sleep", "600", mark=mark), renewed_at=renewed_at))
    until(lambda: host.poll(0.1, eager=False, renewed_at=renewed_at).was_ended, "the process to be ended")
    assert boot_time() - renewed_at >= 2.0
    until(lambda: host.poll(0.1, eager=False, renewed_at=renewed_at).exit_code is not None, "its end")
    assert marked(MARK, mark) == []  # the host reports was_ended from the first signal on; no process remains at exit
    host.end()


def test_process_of_frozen_guard_is_reported_as_ended(mark):
    """The host must not report that the process ran out of memory."""
    host = PodHost(driver_timeout_s=4.0)
    host.start(_launch("sh", "-c", "echo up; exec sleep 600", mark=mark))
    _await_line(host, "up")
    (guard,) = (each.parent() for each in marked(MARK, mark) if each.name() == "sleep")
    until(lambda: fencing_time(host._deadline, guard.pid) not in (None, math.inf), "the guard to read the deadline")
    guard.suspend()
    until(lambda: (report := host.poll(0.1, eager=False)).exit_code is not None or report.was_ended, "its end")
    assert host.poll(0.1, eager=False).was_ended
    host.end()


def test_process_gets_notice_and_host_gets_heartbeat(host):
    code = """
import time
from tradewind.runtime.pods.on_host.heartbeat import beat
from tradewind.runtime.pods.on_host.preemption_notice import preemption_notice
beat(7)
print("up")
while (notice := preemption_notice()) is None:
    time.sleep(0.02)
print(notice.reason, notice.deadline)
"""
    host.start(_python(code))
    _await_line(host, "up")
    until(lambda: (beat := host.poll(0.1, eager=False).beat) and beat.step == 7, "its heartbeat")
    host.notify(Notice(12.0, "maintenance"))
    _await_line(host, "maintenance 12.0")


def test_host_reports_simulated_chips_only_in_rehearsal(monkeypatch):
    assert PodHost().probe().accelerator in (Accelerator.NONE, Accelerator.GPU)
    monkeypatch.setenv(SIMULATED_VARIABLE, "1")
    probe = PodHost().probe()
    assert probe.accelerator is Accelerator.SIMULATED
    assert process_env({}, {}, probe.accelerator)["JAX_PLATFORMS"] == "cpu"


@pytest.mark.parametrize(("has_accelerators", "visible"), [(True, "0"), (False, "")])
def test_gpu_is_hidden_from_group_without_accelerators(host, monkeypatch, has_accelerators, visible):
    monkeypatch.setenv(SIMULATED_VARIABLE, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    launch = _python("import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'])")
    host.start(replace(launch, has_accelerators=has_accelerators))
    _await_line(host, f"sees {visible}")


def test_heartbeat_needs_no_disk_space(host):
    code = """
import resource, time
from tradewind.runtime.pods.on_host.heartbeat import beat
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a disk that is full
beat(7)
time.sleep(600)
"""
    host.start(_python(code))
    first = until(lambda: host.poll(0.1, eager=False).beat, "its heartbeat")
    until(lambda: host.poll(0.1, eager=False).beat.alive_at > first.alive_at + 1.5, "the next ones")
    assert host.end().beat is None


def test_undeletable_lock_file_is_reported_in_log(tmp_path, monkeypatch):
    monkeypatch.setattr(orphans, "LOCKFILE", str(tmp_path / "lockfile"))
    (tmp_path / "lockfile").mkdir()  # even root cannot unlink a folder
    lines, _ = _run(_python("print('output')", log_dir=str(tmp_path / "logs")))
    assert (
        lines[0].startswith(f"tradewind: {tmp_path}/lockfile on ") and "cannot be deleted: Is a directory." in lines[0]
    )
    assert lines[1:] == ["output"]
    assert (tmp_path / "logs" / "host-0.log").read_text().splitlines() == lines


def test_host_reports_deadline_of_announced_maintenance(monkeypatch):
    server = MetadataServer("rehearsal", "us-central2-b")
    server.start()
    metadata = HostMetadata("slice-a", 0, "v4-8", {}, {}, True)
    monkeypatch.setenv("GCE_METADATA_HOST", server.add_host("slice-a.0", "127.0.0.1", metadata))
    host = PodHost()
    assert host.poll(0.0, eager=False).preempted_by is None
    announced = time.time()
    server.announce_maintenance("slice-a")
    deadline = until(lambda: host.poll(0.1, eager=False).preempted_by, "the notice")
    server.stop()
    assert announced + MAINTENANCE_S <= deadline <= time.time() + MAINTENANCE_S
    assert not ray.is_initialized()  # there is no node to drain, and the host starts no Ray for it


def test_orphans_are_killed_before_start_and_live_pods_survive(host, mark):
    dead = subprocess.Popen(["true"])
    orphan_mark = orphans.process_mark("127.0.0.1", dead.pid)
    dead.wait()
    mine = orphans.process_mark("127.0.0.1", os.getpid())
    elsewhere = orphan_mark.replace("127.0.0.1", "127.9.9.9")

    def sleeper(pod: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark, orphans.MARK: pod})

    orphan, live, other = sleeper(orphan_mark), sleeper(mine), sleeper(elsewhere)
    Path(orphans.LOCKFILE).touch()
    host.start(_launch("true"))
    assert orphan.wait(10) == -9
    assert not Path(orphans.LOCKFILE).exists()
    assert (live.poll(), other.poll()) == (None, None)
    for one in (live, other):
        one.kill()
        one.wait()


def test_host_log_and_output_lines_redact_named_secrets(tmp_path):
    code = "import os, sys; v = os.environ['KEY']; print('it is', v); print('key=' + v[:6], end='', flush=True)"
    code += "; print(v[6:], file=sys.stderr); print(os.environ['OTHER'])"
    secrets = {"KEY": "s3cr3t-value", "OTHER": "harmless", NAMES_VARIABLE: "KEY"}
    lines, _ = _run(_python(code, log_dir=str(tmp_path), **secrets))
    assert lines == ["it is ***", "key=***", "harmless"]
    assert (tmp_path / "host-0.log").read_text().splitlines() == lines
