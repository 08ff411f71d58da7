"""Each store lets exactly one of many writers succeed and reports an object's age by its own clock."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.storage.s3_server import LocalS3
from tests.support.waiting import limit_s
from tradewind.recipes.metrics.curves import read_curves
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer
from tradewind.storage import UnsupportedStoreError
from tradewind.storage import backends as stores
from tradewind.storage.backends import StoreRefusedError
from tradewind.storage.errors import StoreUnavailableError
from tradewind.storage.files import existing_many, list_names, read_many, read_text, write_text
from tradewind.storage.swap import StoredObject, read_stored, write_if
from tradewind.storage.trees import remove_files

Served = tuple[LoopbackServer, str]


def written(path: str, text: str, expected: str | None = None) -> StoredObject:
    """Write with a condition that holds and return the stored object."""
    stored = write_if(path, text, expected)
    assert stored is not None, f"{text} was refused"
    return stored


def test_object_is_created_once_and_replaced_only_by_its_tag(any_folder: str) -> None:
    path, other = f"{any_folder}/step-1/näme with %2F+?#.lock", f"{any_folder}/other"
    assert read_stored(path) is None
    first = written(path, "first")
    assert write_if(path, "second", None) is None
    stored = read_stored(path)
    assert stored is not None and (stored.text, stored.tag) == ("first", first.tag)
    second = written(path, "second äöü", first.tag)
    assert second.tag != first.tag
    assert write_if(path, "third", first.tag) is None
    stored = read_stored(path)
    assert stored is not None and (stored.text, stored.tag) == ("second äöü", second.tag)
    assert read_text(path) == "second äöü"
    assert write_if(other, "text", second.tag) is None and read_stored(other) is None


@pytest.mark.slow
def test_one_of_32_threads_creates(any_folder: str) -> None:
    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(lambda number: write_if(f"{any_folder}/x", str(number), None), range(32)))
    winners = [result.text for result in results if result]
    assert winners == [read_text(f"{any_folder}/x")]


def _count_up(path: str, times: int, writer: str) -> None:
    for number in range(times):
        while True:
            stored = read_stored(path)
            assert stored is not None
            count = int(stored.text.partition(" ")[0])
            if write_if(path, f"{count + 1} {writer} {number}", stored.tag):
                break


@pytest.mark.slow
def test_no_count_is_lost_between_threads(any_folder: str) -> None:
    path = f"{any_folder}/counter"
    written(path, "0")
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: _count_up(path, 2, str(number)), range(32)))
    assert (read_text(path) or "").startswith("64 ")


def run_in_processes(target: Callable[..., None], *arguments: tuple[object, ...]) -> None:
    processes = [multiprocessing.get_context("fork").Process(target=target, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)


@pytest.mark.slow
def test_no_count_is_lost_between_forked_processes_with_threads(tmp_path: Path) -> None:
    path = str(tmp_path / "counter")
    written(path, "0")
    run_in_processes(_count_up_in_threads, *[(path, f"p{number}") for number in range(8)])
    assert (read_text(path) or "").startswith(f"{8 * 4 * 3} ")


def _count_up_in_threads(path: str, writer: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: _count_up(path, 3, f"{writer}-{number}"), range(4)))


@pytest.mark.slow
def test_forked_processes_use_the_store(served: Served) -> None:
    path = f"{served[1]}/counter"
    written(path, "0")
    run_in_processes(_count_up, (path, 2, "first"), (path, 2, "second"))
    assert (read_text(path) or "").startswith("4 ")


def test_two_spellings_of_a_local_path_share_one_guard(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    first = written(f"{tmp_path}/real/x", "first")
    assert read_stored(f"file://{tmp_path}/link/x").tag == first.tag  # type: ignore[union-attr]
    written(f"{tmp_path}/link/../link/x", "second", first.tag)
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["x", "x.guard"]


@pytest.mark.slow
def test_guard_held_by_another_process_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, holds = str(tmp_path / "x"), multiprocessing.get_context("fork").Event()
    holder = multiprocessing.get_context("fork").Process(target=_hold_guard, args=(f"{path}.guard", holds))
    holder.start()
    try:
        assert holds.wait(limit_s())
        with monkeypatch.context() as patch, pytest.raises(StoreUnavailableError, match=r"x\.guard"):
            patch.setattr(stores, "REQUEST_TIMEOUT_S", 0.3)
            write_if(path, "text", None)
    finally:
        holder.kill()
        holder.join()
    assert written(path, "text").text == "text"
    assert not list(tmp_path.glob(".x.*"))


def _hold_guard(guard: str, holds: threading.Event) -> None:
    with open(guard, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        holds.set()
        time.sleep(60)


@pytest.mark.slow
def test_write_with_lost_response_counts_as_success(served: Served) -> None:
    server, folder = served
    server.lost_answers = 1
    first = written(f"{folder}/x", "first")
    server.lost_answers = 1
    second = written(f"{folder}/x", "second", first.tag)
    assert server.lost_answers == 0
    assert read_stored(f"{folder}/x").tag == second.tag  # type: ignore[union-attr]


@pytest.mark.slow
def test_passing_failure_of_store_is_retried(served: Served) -> None:
    server, folder = served
    server.failures = 1
    first = written(f"{folder}/x", "first")
    server.failures = 1
    assert read_stored(f"{folder}/x").tag == first.tag  # type: ignore[union-attr]
    paths = [f"{folder}/x", *(f"{folder}/missing-{number}" for number in range(100))]
    server.failures = 3
    assert read_many(paths) == {paths[0]: "first"}
    server.failures = 3
    assert existing_many(paths) == {paths[0]}


def _operations(folder: str) -> list[Callable[[], object]]:
    path = f"{folder}/x"
    return [
        lambda: read_stored(path),
        lambda: write_if(path, "text", None),
        lambda: read_many([path, f"{folder}/y"]),
        lambda: existing_many([path, f"{folder}/y"]),
        lambda: list_names(folder),
        lambda: read_curves(path),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "timeout_s"), [("failures", 1.5), ("latency", 0.5), ("stopped", 1.5)])
def test_store_without_response_is_unavailable(
    served: Served, monkeypatch: pytest.MonkeyPatch, fault: str, timeout_s: float
) -> None:
    server, folder = served
    server.failures = 10**6 if fault == "failures" else 0
    server.latency_s = 600.0 if fault == "latency" else 0.0
    if fault == "stopped":
        server.stop()
    try:
        for operation in _operations(folder):
            with monkeypatch.context() as patch, pytest.raises(StoreUnavailableError, match=folder):
                patch.setattr(stores, "REQUEST_TIMEOUT_S", timeout_s)
                operation()
    finally:
        if fault == "stopped":
            server.start()
            assert written(f"{folder}/x", "text").text == "text"


def test_refused_request_is_not_retried(served: Served) -> None:
    server, folder = served
    server.failures, server.failure_status = 10**6, 403
    for operation in _operations(folder):
        with pytest.raises(StoreRefusedError, match=folder):
            operation()
    assert 10**6 - server.failures < 20


def test_missing_bucket_is_named(gcs: LocalCloudStorage, s3: LocalS3) -> None:
    for path in ("gs://no-such-bucket/x", "s3://no-such-bucket/x"):
        with pytest.raises(StoreRefusedError, match="no-such-bucket"):
            write_if(path, "text", None)


@pytest.mark.parametrize("offset_s", [-300.0, 0.0, 300.0])
def test_age_is_measured_by_clock_of_store(served: Served, offset_s: float) -> None:
    server, folder = served
    server.clock_offset_s = offset_s
    written(f"{folder}/x", "text")
    assert 0 <= read_stored(f"{folder}/x").age_s < 30  # type: ignore[union-attr]
    server.clock_offset_s += 100
    assert 98 <= read_stored(f"{folder}/x").age_s < 130  # type: ignore[union-attr]


def test_age_of_file_is_measured_by_clock_of_its_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    first = written(str(path), "text")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= read_stored(str(path)).age_s < 30  # type: ignore[union-attr]
    mtime = path.stat().st_mtime
    os.utime(path, (mtime - 100, mtime - 100))
    assert 100 <= read_stored(str(path)).age_s < 130  # type: ignore[union-attr]
    os.utime(path, (mtime + 86_400, mtime + 86_400))  # written before the clock was set back
    stored = read_stored(str(path))
    assert stored is not None and (stored.age_s, stored.tag) == (0.0, first.tag)
    assert path.stat().st_mtime < mtime + 6_400, "else a takeover would have to wait until tomorrow"


@pytest.mark.parametrize(
    ("setting", "value", "header"),
    [
        ("keeps_conditions", False, "If-Match"),
        ("ignores", frozenset({"If-Match"}), "If-Match"),
        ("ignores", frozenset({"If-None-Match"}), "If-None-Match"),
    ],
)
def test_store_honoring_only_one_condition_is_refused(
    s3: LocalS3, s3_folder: str, monkeypatch: pytest.MonkeyPatch, setting: str, value: object, header: str
) -> None:
    monkeypatch.setattr(s3, setting, value)
    with pytest.raises(UnsupportedStoreError, match=f"ignores {header}"):
        write_if(f"{s3_folder}/x", "text", None)
    assert not any(s3.buckets[s3_folder.split("/")[2]])


@pytest.mark.slow
def test_many_objects_are_read_and_found_at_once(any_folder: str) -> None:
    texts = {f"{any_folder}/{number}": str(number or "") for number in range(5)}
    for path, text in texts.items():
        write_text(path, text)
    paths = [f"{any_folder}/{number}" for number in range(300)] + [f"{any_folder}/0/below-a-file"]
    assert read_many(paths) == texts
    assert existing_many([*paths, any_folder]) == texts.keys()
    assert read_many([]) == {} and existing_many([]) == set()
    remove_files(any_folder, ["1"])
    assert existing_many(paths) == texts.keys() - {f"{any_folder}/1"}


def test_each_of_many_objects_costs_one_request(gcs: LocalCloudStorage, gs_folder: str) -> None:
    write_text(f"{gs_folder}/0", "here")
    gcs.requests.clear()
    read_many([f"{gs_folder}/{number}" for number in range(50)])
    existing_many([f"{gs_folder}/{number}" for number in range(50)])
    assert gcs.requests == {"get": 99, "read": 1}
