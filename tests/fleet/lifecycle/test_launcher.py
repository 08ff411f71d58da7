"""Ray's launcher runs only while the command that started it holds the cluster lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.runtime.marked import marked
from tests.support.waiting import until
from tradewind.fleet.lifecycle.launcher import LauncherError, RayLauncher
from tradewind.fleet.lock import ClusterBusyError, ClusterLock, HeldClusterLock, MarkerLostError

pytestmark = pytest.mark.slow

MARK = "LAUNCHER_TEST"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield mark
    for process in marked(MARK, mark):
        if process.pid != os.getpid():
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "marker.json")


@contextmanager
def launching(path: str, heartbeat_s: float) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the cluster lock and runs the launcher."""
    command = [sys.executable, "-m", "tests.fleet.lifecycle.launched", path, str(heartbeat_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "launched\n"
        try:
            yield holder
        finally:
            holder.kill()


def sleepers(mark: str) -> list[int]:
    """Return the processes that the launcher has started."""
    return [process.pid for process in marked(MARK, mark) if process.name() == "sleep"]


def test_launcher_dies_with_its_lock_holder_while_lock_is_held(path: str, mark: str) -> None:
    with launching(path, 30.0) as holder:
        until(lambda: len(sleepers(mark)) == 1)  # the shell prints before it becomes the sleeper
        holder.kill()
        until(lambda: not sleepers(mark))
    with pytest.raises(ClusterBusyError):
        ClusterLock("here", path).take("start", "making")


def test_launcher_of_frozen_holder_ends_before_lock_takeover(path: str, mark: str) -> None:
    with launching(path, 3.0) as holder:
        holder.send_signal(signal.SIGSTOP)

        def take() -> HeldClusterLock | None:
            with suppress(ClusterBusyError):
                return ClusterLock("here", path).take("start", "making")
            return None

        new = until(take)
        assert new is not None and not sleepers(mark), "two launchers would have run"
        before = Path(path).read_text()
        holder.send_signal(signal.SIGCONT)
        assert holder.stdout is not None
        *_, last = holder.stdout.read().splitlines()
    assert last == "MarkerLostError"
    assert new.is_resumed and new.is_held and Path(path).read_text() == before


def test_lost_lock_ends_launcher_at_once(path: str, mark: str) -> None:
    def tell(line: str) -> None:
        other = {**json.loads(Path(path).read_text()), "token": "of-another-user"}
        Path(path).write_text(json.dumps(other))
        with suppress(MarkerLostError):
            held.renew()

    slow = ("sh", "-c", "echo launched; sleep 15")
    with (
        ClusterLock("here", path).take("start", "making") as held,
        pytest.raises(MarkerLostError, match="another command may be changing the cluster"),
    ):
        RayLauncher(Path("here.yaml"), tell, slow).up(held)
    assert not sleepers(mark)


RENEWED = """
import json, sys, time
while json.load(open(sys.argv[1]))["counter"] < 4:
    time.sleep(0.05)
sys.exit(3)
"""


def test_launcher_runs_while_the_lock_is_renewed(path: str, mark: str) -> None:
    """Three renewals take longer than the TTL of a lock without renewal."""
    until_renewed = (sys.executable, "-c", RENEWED, path)
    with (
        ClusterLock("here", path).take("start", "making", heartbeat_s=3.0) as held,
        pytest.raises(LauncherError, match="ended with 3"),
    ):
        RayLauncher(Path("here.yaml"), print, until_renewed).up(held)
