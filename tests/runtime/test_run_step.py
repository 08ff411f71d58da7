"""The driver runs a step's function in a process of its own and says how it ended, whatever happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.refusing_storage import RefusingStorage
from tests.runtime.busy_at import GOES_ON
from tests.runtime.marked import alive
from tests.turns import claimed, driver_arguments
from tradewind.records.attempts import Attempt, Outcome, attempt_path, newest_attempt, read_attempt
from tradewind.records.lease_store import LeaseStore
from tradewind.records.leases import HEARTBEAT_S, Lease, Phase
from tradewind.records.manifests import read_manifest, verify_output
from tradewind.records.reading import read_record, read_records
from tradewind.records.record import RecordState
from tradewind.records.status import Status, read_status
from tradewind.records.turns import complete_commit, input_digests
from tradewind.runtime.references import CodeFolder
from tradewind.runtime.run_step import NOTHING_LEFT, SUPERSEDED
from tradewind.runtime.spec import step_spec
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, this_output_path, versioned

REPOSITORY = Path(__file__).parents[2]
QUICK_S = 1.5
"""A heartbeat for tests that wait for a lease to run out."""
BRISK_S = 6.0
"""One for tests that wait until a driver looks at its lease; a busy machine delays no driver for so long."""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Config:
    output_path: Any
    value: Any = None
    folder: str | None = None


def returns(config: Config) -> dict[str, int]:
    return {"pid": os.getpid()}


def returns_an_object(config: Config) -> object:
    return object()


def raises(config: Config) -> None:
    raise ValueError("no good")


def dies(config: Config) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(config: Config) -> None:
    sys.exit(3)


def hangs(config: Config) -> None:
    Path(config.folder or config.output_path, "pid").write_text(str(os.getpid()))
    signal.pause()


def hangs_beside_a_writer_of_its_own_session(config: Config) -> None:
    """The writer has nothing in its environment by which it could be found."""
    writer = 'echo $$ > "$0"/writer; while :; do date >> "$0"/shard; sleep 0.05; done'
    subprocess.Popen(["sh", "-c", writer, str(config.output_path)], start_new_session=True, env={})
    hangs(config)


def writes_a_shard(config: Config) -> None:
    Path(config.output_path, "shard").write_text("whole")


def lists_what_it_finds(config: Config) -> list[str]:
    found = sorted(path.name for path in Path(config.output_path).glob("*") if not path.name.startswith("."))
    Path(config.output_path, "checkpoint").write_text("half way")
    Path(config.output_path, "shard").write_text("half written")
    return found


def writes_files(config: Config, text: str = "of this attempt") -> None:
    for number in range(10):
        Path(config.output_path, str(number)).write_text(text)


def hears_that_its_input_was_made_again(config: Config) -> None:
    assert config.folder is not None
    run(returns, Path(config.folder), withdraws=True)


def resolved_step(fn: Any, store: str, folder: str | None = None, resumable: tuple[str, ...] = ()) -> ResolvedStep:
    config = Config(this_output_path(), versioned(fn.__name__), folder)
    step = ExecutorStep("s", fn, config, resumable=resumable)
    return resolve([step], store).of(step)


def claim(step: ResolvedStep, heartbeat_s: float = HEARTBEAT_S, **fields: Any) -> Attempt:
    return claimed(step, step_spec(step, CodeFolder(REPOSITORY)), heartbeat_s=heartbeat_s, **fields)


def file_of(attempt: Attempt) -> str:
    return attempt_path(attempt.spec["output_path"], attempt.number)


def start(attempt: Attempt, *driver: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", *(driver or ["tradewind.runtime.run_step"]), *driver_arguments(attempt)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(driver: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = driver.communicate(timeout=PATIENCE_S)
    return driver.returncode, text


def lease_of(output_path: str) -> Lease:
    held = LeaseStore(output_path).read()
    assert held is not None
    return held.lease


def until(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(fn: Any, store: Path, **fields: Any) -> tuple[int, str, str, Attempt]:
    attempt = claim(resolved_step(fn, str(store)), **fields)
    code, text = finish(start(attempt))
    ended = read_attempt(file_of(attempt))
    assert ended is not None
    return code, text, attempt.spec["output_path"], ended


def test_a_function_that_returns_makes_a_success(tmp_path: Path) -> None:
    code, _, output_path, ended = run(returns, tmp_path)
    assert (code, ended.outcome, read_status(output_path)) == (0, Outcome.SUCCEEDED, Status.SUCCESS)
    assert '"pid"' in Path(output_path, ".artifact.json").read_text()


def test_a_result_that_json_cannot_hold_is_left_out(tmp_path: Path) -> None:
    code, text, output_path, _ = run(returns_an_object, tmp_path)
    assert code == 0
    assert "The step's result is a object, which JSON cannot hold" in text
    assert not Path(output_path, ".artifact.json").exists()


@pytest.mark.parametrize(
    ("fn", "type_", "message"),
    [
        (raises, "ValueError", "no good"),
        (leaves, "SystemExit", "3"),
    ],
)
def test_a_function_that_fails_is_recorded_with_its_error(tmp_path: Path, fn: Any, type_: str, message: str) -> None:
    code, text, output_path, ended = run(fn, tmp_path)
    assert (code, ended.outcome, read_status(output_path)) == (1, Outcome.FAILED, Status.FAILED)
    assert ended.error is not None and (ended.error.type, ended.error.message) == (type_, message)
    assert f"Step 's' failed: {type_}: {message}" in text


def test_a_function_whose_process_something_kills_is_lost_and_not_failed_so_the_next_run_tries_again(
    tmp_path: Path,
) -> None:
    code, text, output_path, ended = run(dies, tmp_path)
    sentence = (
        "the step's process was killed by signal 9 (SIGKILL) without an error, perhaps because the machine was out of "
        "memory."
    )
    assert (code, ended.outcome) == (SUPERSEDED, Outcome.LOST)
    assert ended.error is not None and (ended.error.type, ended.error.message) == ("ProcessKilled", sentence)
    assert f"Step 's': {sentence}" in text
    assert read_record(output_path).state is RecordState.STOPPED


def test_the_traceback_starts_at_the_steps_own_function(tmp_path: Path) -> None:
    _, _, _, ended = run(raises, tmp_path)
    assert ended.error is not None
    lines = ended.error.traceback.splitlines()
    assert lines[0].startswith("Traceback") and "test_run_step.py" in lines[1]


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, str]]:
    attempt = claim(resolved_step(hangs, str(tmp_path)), BRISK_S)
    driver = start(attempt)
    file = Path(attempt.spec["output_path"], "pid")
    until(lambda: (file.exists() and file.read_text()) or driver.poll() is not None)
    yield driver, psutil.Process(int(file.read_text())), attempt.spec["output_path"]
    driver.kill()
    driver.communicate()


def test_a_driver_that_is_asked_to_stop_ends_the_function(hanging: Any) -> None:
    driver, function, output_path = hanging
    driver.terminate()
    assert driver.wait(60) == 128 + signal.SIGTERM
    function.wait(60)
    ended = newest_attempt(output_path)
    assert ended is not None and ended.outcome is Outcome.STOPPED
    assert lease_of(output_path).phase is Phase.STOPPED
    assert read_status(output_path) is Status.RUNNING  # and so not a result


def test_a_killed_driver_leaves_no_result_and_no_process(hanging: Any) -> None:
    driver, function, output_path = hanging
    driver.kill()
    driver.wait(60)
    function.wait(60)
    assert read_status(output_path) is Status.RUNNING
    unended = newest_attempt(output_path)
    assert unended is not None and unended.outcome is None


def test_a_driver_that_is_asked_through_the_lease_stops_in_good_order(hanging: Any) -> None:
    driver, function, output_path = hanging
    LeaseStore(output_path).request_stop("job-1", {"try": 2})
    code, text = finish(driver)
    assert code == 128 + signal.SIGTERM, text
    function.wait(60)
    lease = lease_of(output_path)
    assert (lease.phase, lease.stop_requested) == (Phase.STOPPED, {"try": 2})


# ---- whose turn it is


def test_a_driver_whose_turn_went_to_another_exits_superseded_and_touches_nothing(tmp_path: Path) -> None:
    step = resolved_step(returns, str(tmp_path))
    first = claim(step)
    claim(step)
    output = Path(step.output_path)
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    code, text = finish(start(first))
    assert (code, text.startswith("Superseded before it began: ")) == (SUPERSEDED, True)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


def test_of_two_drivers_of_one_job_one_works(tmp_path: Path) -> None:
    attempt = claim(resolved_step(returns, str(tmp_path)))
    drivers = [start(attempt), start(attempt)]
    assert sorted(finish(driver)[0] for driver in drivers) == [0, SUPERSEDED]
    assert read_record(attempt.spec["output_path"]).state is RecordState.FINISHED


def test_a_driver_that_loses_its_turn_ends_its_function_and_leaves_the_record_alone(hanging: Any) -> None:
    driver, function, output_path = hanging
    step = resolved_step(hangs, str(Path(output_path).parent))
    claim(step)
    code, text = finish(driver)
    function.wait(60)
    assert (code, "somebody else holds its lease" in text) == (SUPERSEDED, True)
    lost, lease = read_attempt(attempt_path(output_path, 1)), lease_of(output_path)
    assert lost is not None and lost.outcome is Outcome.LOST
    assert (lease.attempt, lease.phase) == (2, Phase.CLAIMED)
    assert read_status(output_path) is Status.RUNNING


def test_a_driver_that_was_frozen_while_it_removed_leftovers_spares_the_files_of_the_next_attempt(
    tmp_path: Path,
) -> None:
    step = resolved_step(writes_files, str(tmp_path))
    claim(step)
    writes_files(Config(step.output_path), "of attempt 1")
    driver = start(claim(step, QUICK_S), "tests.runtime.frozen_in_removal")
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
    """A driver, its function and the function's own writer, under a lease that soon runs out."""
    step = resolved_step(hangs_beside_a_writer_of_its_own_session, str(tmp_path))
    driver = start(claim(step, QUICK_S))
    files = [Path(step.output_path, name) for name in ("pid", "writer")]
    until(lambda: all(file.exists() and file.read_text() for file in files) or driver.poll() is not None)
    processes = [psutil.Process(int(file.read_text())) for file in files]
    yield driver, processes, step
    for one in (driver, *processes):
        with contextlib.suppress(psutil.Error):
            one.kill()
    driver.communicate()


def test_a_killed_keeper_leaves_no_writer_behind_in_whatever_session(writing: Any) -> None:
    driver, processes, step = writing
    driver.kill()
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    assert not alive(one.pid for one in processes)


def test_when_the_lease_of_a_frozen_keeper_may_be_taken_over_nothing_of_it_is_at_work(
    writing: Any,
) -> None:
    driver, processes, step = writing
    driver.send_signal(signal.SIGSTOP)
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    assert not alive(one.pid for one in processes)
    driver.send_signal(signal.SIGCONT)
    assert driver.wait(PATIENCE_S) == SUPERSEDED


def test_of_a_machine_that_was_suspended_past_the_term_of_a_lease_nothing_goes_on_when_it_wakes(writing: Any) -> None:
    driver, processes, step = writing
    all_of_it = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    for one in all_of_it:
        one.suspend()
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    for one in all_of_it:
        with contextlib.suppress(psutil.Error):
            one.resume()
    assert driver.wait(PATIENCE_S) == SUPERSEDED
    assert not alive(one.pid for one in processes)


def test_a_killed_guard_leaves_no_writer_beside_the_next_attempt(writing: Any) -> None:
    driver, processes, step = writing
    psutil.Process(driver.pid).children()[0].kill()
    code, text = finish(driver)
    assert (code, lease_of(step.output_path).phase) == (SUPERSEDED, Phase.STOPPED), text
    assert not alive(one.pid for one in processes)


def test_a_driver_that_lost_its_turn_ends_in_the_middle_of_its_writes_with_the_threads_of_its_store(
    tmp_path: Path,
) -> None:
    step = resolved_step(writes_a_shard, str(tmp_path))
    claim(step)
    busy = start(claim(step, BRISK_S), "tests.runtime.busy_at", "tradewind.runtime.run_step:remove_leftovers")
    written = Path(step.output_path, "written")
    until(lambda: written.exists() or busy.poll() is not None)
    claim(step)
    code, text = finish(busy)
    assert (code, "somebody else holds its lease" in text) == (SUPERSEDED, True), text
    assert GOES_ON not in text, "it was asked to end, and not ended"


# ---- killed on the way to the commit


def test_a_keeper_that_is_killed_before_the_swap_leaves_nothing_that_counts_and_the_next_attempt_wins(
    tmp_path: Path,
) -> None:
    step = resolved_step(returns, str(tmp_path))
    first = claim(step, QUICK_S)
    code, _ = finish(start(first, "tests.runtime.killed_at", "tradewind.records.turns:check_inputs_unchanged"))
    assert code == -signal.SIGKILL
    assert Path(step.output_path, ".attempts/1/manifest.json").exists()  # it was that close
    assert lease_of(step.output_path).phase is Phase.RUNNING
    until(lambda: read_record(step.output_path).state is not RecordState.AT_WORK)
    assert read_record(step.output_path).state is RecordState.STOPPED
    code, text, _, ended = run(returns, tmp_path)
    assert (code, ended.number, ended.outcome) == (0, 2, Outcome.SUCCEEDED), text
    assert read_record(step.output_path).state is RecordState.FINISHED
    lost = read_attempt(file_of(first))
    assert lost is not None and lost.outcome is Outcome.LOST


def test_a_keeper_that_is_killed_after_the_swap_has_made_a_result_and_any_reader_completes_it(tmp_path: Path) -> None:
    step = resolved_step(returns, str(tmp_path))
    path = step.output_path
    attempt = claim(step)
    code, _ = finish(start(attempt, "tests.runtime.killed_at", "tradewind.records.turns:complete_commit"))
    assert code == -signal.SIGKILL
    assert (read_record(path).state, read_status(path)) == (RecordState.FINISHED, Status.RUNNING)
    committed = lease_of(path)
    complete_commit(path, committed)
    ended = newest_attempt(path)
    assert ended is not None and (ended.number, ended.outcome) == (1, Outcome.SUCCEEDED)
    assert read_status(path) is Status.SUCCESS
    again = claim(step, withdraws=True)
    complete_commit(path, committed)  # by somebody who read it before the clear
    assert read_record(path).state is RecordState.AT_WORK
    assert finish(start(again))[0] == 0
    assert (lease_of(path).attempt, read_record(path).state) == (2, RecordState.FINISHED)


# ---- what an attempt finds


def found_by(step: ResolvedStep, **fields: Any) -> str:
    code, text = finish(start(claim(step, **fields)))
    assert code == 0, text
    return Path(step.output_path, ".artifact.json").read_text()


def test_leftovers_of_earlier_attempts_are_removed_except_what_the_step_goes_on_from(tmp_path: Path) -> None:
    step = resolved_step(lists_what_it_finds, str(tmp_path), resumable=("checkpoint",))
    first = claim(step)
    finish(start(first, "tests.runtime.killed_at", "tradewind.records.turns:check_inputs_unchanged"))
    assert Path(step.output_path, "shard").exists()
    assert found_by(step) == '["checkpoint"]'
    assert found_by(step, withdraws=True) == "[]"  # a result that is made again is made from nothing


def test_an_attempt_whose_input_changed_meanwhile_is_not_committed(tmp_path: Path) -> None:
    _, _, input_path, _ = run(returns, tmp_path / "input")
    step = resolved_step(hears_that_its_input_was_made_again, str(tmp_path), folder=str(tmp_path / "input"))
    attempt = claim(step, inputs=input_digests(read_records([input_path])))
    code, text = finish(start(attempt))
    assert (code, "was made again while attempt 1 was at work" in text) == (SUPERSEDED, True), text
    ended = newest_attempt(step.output_path)
    assert ended is not None and ended.outcome is Outcome.LOST
    assert read_record(step.output_path).state is RecordState.STOPPED


# ---- without its store


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingStorage]:
    server = RefusingStorage()
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    try:
        yield server
    finally:
        server.stop()


def test_a_driver_without_its_store_for_longer_than_the_fence_ends_itself_and_says_nothing(
    cloud: RefusingStorage, tmp_path: Path
) -> None:
    bucket = cloud.buckets.create("outputs").name
    step = resolved_step(hangs, f"gs://{bucket}/prefix", folder=str(tmp_path))
    attempt = claim(step, QUICK_S)
    driver = start(attempt)
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() or driver.poll() is not None)
        function = psutil.Process(int((tmp_path / "pid").read_text()))
        cloud.failures = 10**9
        function.wait(PATIENCE_S)
        cloud.failures = 0
        code, text = finish(driver)
    finally:
        driver.kill()
    assert (code, "its lease could not be renewed in time" in text) == (SUPERSEDED, True), text
    assert text.rstrip().endswith(NOTHING_LEFT), "so the next attempt need not wait until the lease has run out"
    assert lease_of(step.output_path).phase is Phase.RUNNING
    unended = read_attempt(file_of(attempt))
    assert unended is not None and unended.outcome is None


def test_writes_that_the_store_refuses_twice_are_tried_again_and_the_step_finishes(cloud: RefusingStorage) -> None:
    bucket = cloud.buckets.create("outputs").name
    step = resolved_step(returns, f"gs://{bucket}/prefix")
    attempt = claim(step, BRISK_S)
    names = (".executor_status", ".artifact.json", "manifest.json", ".executor_status.lock")
    cloud.refusals = dict.fromkeys(names, 2)
    code, text = finish(start(attempt))
    assert (code, set(cloud.refusals.values())) == (0, {0}), text
    assert read_record(step.output_path).state is RecordState.FINISHED


def test_a_store_that_goes_on_refusing_makes_the_turn_lost_and_not_failed(cloud: RefusingStorage) -> None:
    bucket = cloud.buckets.create("outputs").name
    step = resolved_step(returns, f"gs://{bucket}/prefix")
    attempt = claim(step, BRISK_S)
    cloud.refusals["manifest.json"] = 10**9
    code, text = finish(start(attempt))
    ended = newest_attempt(step.output_path)
    assert (code, ended and ended.outcome) == (SUPERSEDED, Outcome.LOST), text
    assert read_record(step.output_path).state is RecordState.STOPPED
