"""The triggerer stores a log position only after the lines before it have left the process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tradewind.deployment import log_position
from tradewind.deployment.log_position import PositionFile, PositionSaver, SavedPosition
from tradewind.deployment.task_instances import TaskAddress

TASK = TaskAddress("dag", "run", "task", -1)


def position(chars: int, follower: str = "a", job: str = "j") -> SavedPosition:
    return SavedPosition(job, {"chars": chars}, is_exact=False, follower=follower)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Airflow's folder of logs."""
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path))
    return tmp_path


def replace_folder_by_file(logs: Path) -> None:
    """Make every write of a position fail."""
    (logs / log_position.FILES).rmdir()
    (logs / log_position.FILES).write_text("no folder")


def test_newer_position_counts_only_for_same_follower(logs: Path) -> None:
    assert PositionFile(TASK).newer_than(position(1)) == position(1), "there is no file yet"
    assert PositionFile(TASK).write(position(5))
    assert PositionFile(TASK).newer_than(position(1)) == position(5)
    for other in (position(1, follower="b"), position(1, job="k"), position(1, follower="")):
        assert PositionFile(TASK).newer_than(other) == other
    assert PositionFile(TaskAddress("dag", "run", "task", 0)).newer_than(position(1)) == position(1)


def test_torn_or_unwritable_position_file_is_ignored(logs: Path) -> None:
    PositionFile(TASK).write(position(5))
    [file] = (logs / log_position.FILES).iterdir()
    file.write_text("{")
    assert PositionFile(TASK).newer_than(position(1)) == position(1)
    PositionFile(TASK).delete()
    replace_folder_by_file(logs)
    assert not PositionFile(TASK).write(position(6))


def test_log_read_to_end_deletes_its_position_file_and_old_files(logs: Path) -> None:
    PositionFile(TASK).write(position(5))
    old = logs / log_position.FILES / "old.json"
    old.write_text("{}")
    os.utime(old, (0, 0))
    PositionFile(TASK).delete()
    assert list((logs / log_position.FILES).iterdir()) == []


async def test_airflow_position_save_is_throttled_unless_file_fails(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[SavedPosition] = []

    async def save(task: TaskAddress, position: SavedPosition) -> bool:
        saved.append(position)
        return True

    saver = PositionSaver(TASK, save)
    for chars in (1, 2, 3, 3):
        await saver.save(position(chars))
    assert saved == [position(1)]
    assert PositionFile(TASK).newer_than(saved[-1]) == position(3)
    monkeypatch.setattr(log_position, "SAVE_TO_AIRFLOW_S", 0.0)
    await saver.save(position(3))  # no new lines, and Airflow still receives the position
    monkeypatch.setattr(log_position, "SAVE_TO_AIRFLOW_S", 15.0)
    await saver.end()
    replace_folder_by_file(logs)
    await saver.save(position(4))
    assert saved == [position(1), position(3), position(4)]


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    process, airflow = socket.socketpair()
    log_position._unix_sockets.cache_clear()
    with process, airflow:
        yield process, airflow
    log_position._unix_sockets.cache_clear()


async def test_trigger_ends_after_airflow_has_taken_its_last_lines(
    logs: Path, channel: tuple[socket.socket, socket.socket]
) -> None:
    process, airflow = channel
    assert await log_position._lines_are_taken()
    process.send(b"line\n" * 100)
    ending = asyncio.create_task(PositionSaver(TASK).end())
    done, _ = await asyncio.wait({ending}, timeout=10 * log_position._DRAIN_POLL_S)
    assert not done
    assert airflow.recv(1000) == b"line\n" * 100
    await ending


def test_looking_for_sockets_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """The search leaked a copy of each descriptor that is no socket, so each search doubled their number."""
    before = os.listdir("/proc/self/fd")
    with open(tmp_path / "file", "w"), socket.socket():
        log_position._unix_sockets.__wrapped__()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.slow
def test_only_connected_unix_sockets_are_asked() -> None:
    code = (
        "import socket; from tradewind.deployment.log_position import _unix_sockets as found\n"
        "kept = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET), *socket.socketpair()]\n"
        "assert sorted(found()) == sorted(one.fileno() for one in kept[2:]), found()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
