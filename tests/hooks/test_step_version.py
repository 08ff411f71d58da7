"""A plain task makes each version once, by the same rules as a step."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped
from airflow.sdk.execution_time.context import set_current_context

from tests.support.flaky_storage import RefusingStorage
from tradewind import this_output_path, versioned
from tradewind.hooks import step_version
from tradewind.hooks.step_version import StepVersionHook
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, attempt_path, read_attempt
from tradewind.records.lease_store import HeldLease, LeaseStore
from tradewind.records.lifecycle import fail_attempt, stop_attempt
from tradewind.records.record import RecordState, read_record
from tradewind.storage.files import write_text
from tradewind.tasks.errors import AdoptedFailureError

NIGHT = datetime(2026, 1, 1, tzinfo=UTC)


class Notes(dict[str, Any]):
    """Stub of Airflow's task state store."""

    set = dict.__setitem__


class PlainTask:
    """A task of one DAG run, with the context that an Airflow worker gives it."""

    def __init__(self, prefix: Path | str, run_id: str = "r") -> None:
        self.prefix, self.run_id, self.notes = prefix, run_id, Notes()
        self.output = ""
        with DAG("plain") as self.dag:
            pass

    def run(self, **numbers: int) -> None:
        """Run one try of the task."""
        with self.as_task(**numbers), self.step() as step:
            self.output = step.output_path
            Path(step.config["out"], "made").write_text("made")

    def step(self) -> Any:
        return StepVersionHook(str(self.prefix)).step("plain", {"n": versioned(7), "out": this_output_path()})

    def die_in_block(self) -> tuple[Callable[..., HeldLease], Attempt]:
        """Return a function that changes the lease, and the attempt, which a kill in its block left running."""
        with self.as_task(), self.step() as step:
            self.output = step.output_path
            left = {file: file.read_text() for file in Path(self.output).rglob("*") if file.is_file()}
        shutil.rmtree(self.output)
        for file, text in left.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self.notes.clear()
        store, attempt = LeaseStore(self.output), read_attempt(attempt_path(self.output, 1))
        assert attempt is not None

        def change(**changes: Any) -> HeldLease:
            held = store.read()
            assert held is not None
            return store.change(held, **changes)

        return change, attempt

    @contextmanager
    def as_task(self, try_number: int = 1, max_tries: int = 3, clear_number: int = 0) -> Iterator[None]:
        ti = SimpleNamespace(dag_id="plain", run_id=self.run_id, task_id="make", map_index=-1)
        ti.try_number, ti.max_tries, ti.xcom_push = try_number, max_tries, lambda **_: None
        run = SimpleNamespace(data_interval_start=NIGHT, data_interval_end=None, partition_key=None, run_after=NIGHT)
        run.clear_number = clear_number
        context: Any = {"ti": ti, "dag": self.dag, "dag_run": run, "params": {}, "task_state_store": self.notes}
        with set_current_context(context):
            yield


@pytest.fixture(autouse=True)
def deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__DEPLOYMENT", "prod")


@contextmanager
def when_it_waits(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` when the hook logs that it waits."""

    def watch(record: logging.LogRecord) -> bool:
        if "is in progress" in record.getMessage():
            act()
        return True

    logger, level = step_version.logger, step_version.logger.level
    logger.addFilter(watch)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeFilter(watch)
        logger.setLevel(level)


def attempts(output: str) -> list[AttemptOutcome | None]:
    numbers = sorted(int(file.stem) for file in Path(output, ".attempts").glob("*.json"))
    found = [read_attempt(attempt_path(output, number)) for number in numbers]
    return [attempt.outcome for attempt in found if attempt is not None]


@pytest.mark.parametrize("noted", [True, False])
def test_task_that_died_after_commit_succeeds_without_skipping(noted: bool, tmp_path: Path) -> None:
    task = PlainTask(tmp_path)
    task.run()
    if not noted:
        task.notes.clear()
    with pytest.raises(DownstreamTasksSkipped) as ended:
        task.run(try_number=2)
    assert list(ended.value.tasks) == []
    assert attempts(task.output) == [AttemptOutcome.SUCCEEDED]


def test_unnamed_deployment_recognizes_its_own_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__DEPLOYMENT", "")
    task = PlainTask(tmp_path)
    task.run()
    with pytest.raises(DownstreamTasksSkipped):
        task.run(try_number=2)
    with pytest.raises(AirflowSkipException):
        PlainTask(tmp_path).run(try_number=2)  # a task of the same name in another deployment


@pytest.mark.parametrize("allowed", [{"max_tries": 4}, {"max_tries": 2}, {"max_tries": 3, "clear_number": 1}])
def test_cleared_task_reruns_version_even_with_lowered_retries(allowed: dict[str, int], tmp_path: Path) -> None:
    task = PlainTask(tmp_path)
    task.run()
    task.run(try_number=2, **allowed)
    assert attempts(task.output) == [AttemptOutcome.SUCCEEDED, AttemptOutcome.SUCCEEDED]


def test_task_of_another_run_is_skipped_until_it_is_cleared(tmp_path: Path) -> None:
    PlainTask(tmp_path, "first").run()
    task = PlainTask(tmp_path, "second")
    with pytest.raises(AirflowSkipException, match="is finished: made by task make of run first of plain"):
        task.run()
    task.run(try_number=2, max_tries=4)
    assert attempts(task.output) == [AttemptOutcome.SUCCEEDED, AttemptOutcome.SUCCEEDED]


def test_inherited_failure_ends_this_try_but_not_the_next(tmp_path: Path) -> None:
    first, second = PlainTask(tmp_path, "first"), PlainTask(tmp_path, "second")
    change, attempt = first.die_in_block()

    def fail() -> None:
        fail_attempt(change, first.output, attempt, AttemptError("ValueError", "no rows"))

    with when_it_waits(fail), pytest.raises(AdoptedFailureError, match="of run first of plain.* ValueError: no rows"):
        second.run()
    second.run(try_number=2)
    assert attempts(first.output) == [AttemptOutcome.FAILED, AttemptOutcome.SUCCEEDED]


def test_task_cleared_while_running_stops_its_earlier_try_first(tmp_path: Path) -> None:
    task = PlainTask(tmp_path)
    change, attempt = task.die_in_block()

    def obey() -> None:
        lease = read_record(task.output).lease
        assert lease is not None and lease.stop_requested
        stop_attempt(change, task.output, attempt, AttemptOutcome.STOPPED)

    with when_it_waits(obey):
        task.run(try_number=2, max_tries=4)
    assert attempts(task.output) == [AttemptOutcome.STOPPED, AttemptOutcome.SUCCEEDED]


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingStorage]:
    server = RefusingStorage()
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    try:
        yield server
    finally:
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        server.stop()


@pytest.fixture
def stored(refusing: RefusingStorage) -> PlainTask:
    return PlainTask(f"gs://{refusing.buckets.create('outputs').name}/prefix")


@pytest.mark.slow
@pytest.mark.parametrize(("error", "written"), [(None, "manifest.json"), (ValueError("no rows"), "1.json")])
def test_one_store_refusal_at_block_end_is_retried(
    error: Exception | None, written: str, refusing: RefusingStorage, stored: PlainTask
) -> None:
    with suppress(ValueError), stored.as_task(), stored.step() as step:
        write_text(f"{step.output_path}/made", "made")
        refusing.refusals = {written: 1, ".executor_status.lock": 1}
        if error is not None:
            raise error
    assert set(refusing.refusals.values()) == {0}
    assert read_record(step.output_path).state is (RecordState.FAILED if error else RecordState.FINISHED)
    attempt = read_attempt(attempt_path(step.output_path, 1))
    assert attempt is not None and attempt.outcome is (AttemptOutcome.FAILED if error else AttemptOutcome.SUCCEEDED)


@pytest.mark.slow
def test_one_store_refusal_on_external_stop_is_retried(refusing: RefusingStorage, stored: PlainTask) -> None:
    with pytest.raises(KeyboardInterrupt), stored.as_task(), stored.step() as step:
        refusing.refusals = {".executor_status.lock": 1}
        raise KeyboardInterrupt
    assert read_record(step.output_path).state is RecordState.STOPPED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "after"),
    [(".executor_status.lock", 0), (".executor_status.lock", 1), ("1.json", 0), (".executor_info", 0)],
    ids=["claim", "begin", "attempt", "info"],
)
def test_one_store_refusal_before_block_is_retried(
    written: str, after: int, refusing: RefusingStorage, stored: PlainTask
) -> None:
    refusing.refusals, refusing.let_through = {written: 1}, {written: after}
    with stored.as_task(), stored.step() as step:
        write_text(f"{step.output_path}/made", "made")
    assert refusing.refusals == {written: 0}
    assert read_record(step.output_path).state is RecordState.FINISHED


def test_block_error_is_recorded_with_secrets_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("connection-password")
    monkeypatch.setenv("MY_API_KEY", "pa55/w0rd")
    token = "hf_" + "a1B2c3" * 6
    task, secret_error = PlainTask(tmp_path), type(token, (ValueError,), {})
    with pytest.raises(ValueError), task.as_task(), task.step():
        raise secret_error(f"connection-password, pa55%2Fw0rd, {token}, harmless")
    (written,) = tmp_path.rglob("1.json")
    error = json.loads(written.read_text())["error"]
    assert (error["type"], error["message"]) == ("***", "***, ***, ***, harmless")
    assert "harmless" in error["traceback"]
    assert not [one for one in ("connection-password", "pa55", token) if one in written.read_text()]


def test_secret_like_config_value_is_warned_of_by_path_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = "hf_" + "a1B2c3" * 6
    inner = {"fields": 5, "db_password": "hunter2hunter2"}
    config = {"hub": [{"key": token}], "$dict": inner, "revision": "0" * 40}
    hook = StepVersionHook(str(tmp_path))
    with PlainTask(tmp_path).as_task(), caplog.at_level(logging.WARNING), hook.step("plain", config):
        pass
    warnings = [record.getMessage() for record in caplog.records if "looks like a secret" in record.getMessage()]
    assert [text.partition(" looks")[0] for text in warnings] == [
        "Step 'plain': config.hub.[0].key",
        "Step 'plain': config.dict.db_password",
    ]
    assert token not in caplog.text and "hunter2" not in caplog.text
