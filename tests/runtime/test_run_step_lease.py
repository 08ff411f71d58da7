"""A driver runs while it holds the lease, and leaves no process behind when it loses it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runtime.driven import (
    BRISK_S,
    QUICK_S,
    Config,
    claim,
    file_of,
    finish,
    hangs,
    hangs_beside_detached_writer,
    lease_of,
    resolved_step,
    returns,
    run_attempt,
    start,
    start_renewed,
    writes_a_shard,
    writes_files,
)
from tests.runtime.faulty_driver import INTERRUPTED
from tests.runtime.marked import alive
from tests.support.flaky_storage import RefusingStorage
from tests.support.waiting import limit_s, until
from tradewind.records.attempts import AttemptOutcome, attempt_path, newest_attempt, read_attempt
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.records.manifests import read_manifest, verify_output
from tradewind.records.record import RecordState, Status, read_record, read_status
from tradewind.runtime.run_step import NOTHING_LEFT, SUPERSEDED
from tradewind.steps import ResolvedStep

pytestmark = pytest.mark.slow


def function_of(driver: subprocess.Popen[str], folder: Any, name: str = "pid") -> psutil.Process:
    """Return the process that has written its ID to a file in this folder, unless the driver ends before."""
    file = Path(folder, name)
    until(lambda: (file.exists() and file.read_text()) or driver.poll() is not None)
    return psutil.Process(int(file.read_text()))


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, str]]:
    attempt = claim(resolved_step(hangs, str(tmp_path)), BRISK_S)
    driver = start(attempt)
    yield driver, function_of(driver, attempt.spec["output_path"]), attempt.spec["output_path"]
    driver.kill()
    driver.communicate()


def test_sigterm_of_driver_ends_function(hanging: Any) -> None:
    driver, function, output_path = hanging
    driver.terminate()
    assert driver.wait(limit_s()) == 128 + signal.SIGTERM
    function.wait(limit_s())
    ended = newest_attempt(output_path)
    assert ended is not None and ended.outcome is AttemptOutcome.STOPPED
    assert lease_of(output_path).phase is Phase.STOPPED
    assert read_status(output_path) is Status.RUNNING  # so the output is no result


def test_killed_driver_leaves_no_result_and_no_process(hanging: Any) -> None:
    driver, function, output_path = hanging
    driver.kill()
    driver.wait(limit_s())
    function.wait(limit_s())
    assert read_status(output_path) is Status.RUNNING
    unended = newest_attempt(output_path)
    assert unended is not None and unended.outcome is None


def test_stop_request_in_lease_shuts_driver_down_gracefully(hanging: Any) -> None:
    driver, function, output_path = hanging
    LeaseStore(output_path).request_stop("job-1", {"try": 2})
    code, text = finish(driver)
    assert code == 128 + signal.SIGTERM, text
    function.wait(limit_s())
    lease = lease_of(output_path)
    assert (lease.phase, lease.stop_requested) == (Phase.STOPPED, {"try": 2})


# ---- lost leases


def test_driver_superseded_before_start_writes_nothing(tmp_path: Path) -> None:
    step = resolved_step(returns, str(tmp_path))
    first = claim(step)
    claim(step)
    before = {path: path.read_bytes() for path in Path(step.output_path).rglob("*") if path.is_file()}
    code, text = finish(start(first))
    assert (code, text.startswith("Superseded before it began: ")) == (SUPERSEDED, True)
    assert {path: path.read_bytes() for path in Path(step.output_path).rglob("*") if path.is_file()} == before


def test_one_of_two_drivers_of_same_job_runs(tmp_path: Path) -> None:
    attempt = claim(resolved_step(returns, str(tmp_path)))
    drivers = [start(attempt), start(attempt)]
    assert sorted(finish(driver)[0] for driver in drivers) == [0, SUPERSEDED]
    assert read_record(attempt.spec["output_path"]).state is RecordState.FINISHED


def test_driver_losing_lease_ends_function_and_keeps_record(hanging: Any) -> None:
    driver, function, output_path = hanging
    step = resolved_step(hangs, str(Path(output_path).parent))
    claim(step)
    code, text = finish(driver)
    function.wait(limit_s())
    assert (code, "another process holds its lease" in text) == (SUPERSEDED, True)
    lost, lease = read_attempt(attempt_path(output_path, 1)), lease_of(output_path)
    assert lost is not None and lost.outcome is AttemptOutcome.LOST
    assert (lease.attempt, lease.phase) == (2, Phase.CLAIMED)
    assert read_status(output_path) is Status.RUNNING


def test_driver_frozen_in_cleanup_spares_files_of_next_attempt(tmp_path: Path) -> None:
    step = resolved_step(writes_files, str(tmp_path))
    claim(step)
    writes_files(Config(step.output_path), "of attempt 1")
    driver = start_renewed(claim(step, QUICK_S), "frozen:tradewind.records.cleanup:_remove")
    until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED)
    until(lambda: read_record(step.output_path).state is RecordState.STOPPED)
    code, text = finish(start(claim(step)))
    assert code == 0, text
    driver.send_signal(signal.SIGCONT)
    code, text = finish(driver)
    assert code == SUPERSEDED, text
    lease, manifest = lease_of(step.output_path), read_manifest(step.output_path, 3)
    assert (lease.attempt, lease.phase) == (3, Phase.COMMITTED)
    assert manifest is not None and verify_output(step.output_path, manifest, lease.digest) == []


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process], ResolvedStep]]:
    """A driver, its function and the function's writer, under a lease with a short heartbeat interval."""
    step = resolved_step(hangs_beside_detached_writer, str(tmp_path))
    driver = start_renewed(claim(step, QUICK_S))
    processes = [function_of(driver, step.output_path, name) for name in ("pid", "writer")]
    yield driver, processes, step
    for one in (driver, *processes):
        with contextlib.suppress(psutil.Error):
            one.kill()
    driver.communicate()


def test_killed_lease_owner_leaves_no_writer_in_any_session(writing: Any) -> None:
    driver, processes, step = writing
    driver.kill()
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    assert not alive(one.pid for one in processes)


def test_stale_lease_of_frozen_owner_has_no_live_processes(writing: Any) -> None:
    driver, processes, step = writing
    driver.send_signal(signal.SIGSTOP)
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    assert not alive(one.pid for one in processes)
    driver.send_signal(signal.SIGCONT)
    code, text = finish(driver)
    assert (code, "because its lease could not be renewed in time" in text) == (SUPERSEDED, True), text


def test_nothing_resumes_after_suspend_past_lease_deadline(writing: Any) -> None:
    driver, processes, step = writing
    frozen = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    for one in frozen:
        with contextlib.suppress(psutil.NoSuchProcess):  # commands of the writer exit within milliseconds
            one.suspend()
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    for one in frozen:
        with contextlib.suppress(psutil.Error):
            one.resume()
    assert driver.wait(limit_s()) == SUPERSEDED
    assert not alive(one.pid for one in processes)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_guard_leaves_no_writer_beside_next_attempt(writing: Any, sent: signal.Signals) -> None:
    driver, processes, step = writing
    psutil.Process(driver.pid).children()[0].send_signal(sent)
    code, text = finish(driver)
    assert (code, lease_of(step.output_path).phase) == (SUPERSEDED, Phase.STOPPED), text
    if sent is signal.SIGSTOP:
        assert "because the deadline of its lease passed" in text and "memory" not in text
    assert not alive(one.pid for one in processes)


def test_slowly_exiting_driver_returns_superseded_exit_code(tmp_path: Path) -> None:
    step = resolved_step(hangs, str(tmp_path))
    driver = start_renewed(claim(step, 2 * QUICK_S), "slow")
    function = function_of(driver, step.output_path)
    claim(step)
    function.kill()
    code, text = finish(driver)
    assert (code, "its output does not count" in text) == (SUPERSEDED, True), text


def test_lost_lease_ends_driver_during_writes_of_store_threads(tmp_path: Path) -> None:
    step = resolved_step(writes_a_shard, str(tmp_path))
    claim(step)
    busy = start(claim(step, BRISK_S), "writing:tradewind.runtime.run_step:remove_leftovers")
    written = Path(step.output_path, "written")
    until(lambda: written.exists() or busy.poll() is not None)
    claim(step)
    code, text = finish(busy)
    assert (code, "another process holds its lease" in text) == (SUPERSEDED, True), text
    assert INTERRUPTED not in text, "the driver was interrupted, not killed"


# ---- an unavailable store


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingStorage]:
    """An object store with the bucket ``outputs``."""
    server = RefusingStorage()
    server.start()
    server.buckets.create("outputs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    try:
        yield server
    finally:
        server.stop()


PREFIX = "gs://outputs/prefix"


def test_driver_without_store_past_fencing_interval_exits(cloud: RefusingStorage, tmp_path: Path) -> None:
    step = resolved_step(hangs, PREFIX, folder=str(tmp_path))
    attempt = claim(step, QUICK_S)
    driver = start_renewed(attempt)
    try:
        function = function_of(driver, tmp_path)
        cloud.failures = 10**9
        function.wait(limit_s())
        cloud.failures = 0
        code, text = finish(driver)
    finally:
        driver.kill()
    assert (code, "its lease could not be renewed in time" in text) == (SUPERSEDED, True), text
    assert text.rstrip().endswith(NOTHING_LEFT), "the next attempt would wait until the lease expires"
    assert lease_of(step.output_path).phase is Phase.RUNNING
    unended = read_attempt(file_of(attempt))
    assert unended is not None and unended.outcome is None


def test_twice_refused_store_writes_are_retried_until_success(cloud: RefusingStorage) -> None:
    step = resolved_step(returns, PREFIX)
    attempt = claim(step, BRISK_S)
    names = (".executor_status", ".artifact.json", "manifest.json", ".executor_status.lock")
    cloud.refusals = dict.fromkeys(names, 2)
    code, text = finish(start(attempt))
    assert (code, set(cloud.refusals.values())) == (0, {0}), text
    assert read_record(step.output_path).state is RecordState.FINISHED


def test_persistent_store_refusal_makes_attempt_lost_not_failed(cloud: RefusingStorage) -> None:
    step = resolved_step(returns, PREFIX)
    cloud.refusals["manifest.json"] = 10**9
    code, text, ended = run_attempt(claim(step, BRISK_S))
    assert (code, ended.outcome) == (SUPERSEDED, AttemptOutcome.LOST), text
    assert read_record(step.output_path).state is RecordState.STOPPED
