"""Reasons why a step runs, waits or is reused: earlier versions beside the output, states, and stored errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.plans.differences import Inputs, compare_inputs
from tradewind.plans.reasons import (
    AttemptSummary,
    SearchLimits,
    explain_new_versions,
    explain_steps,
    find_history,
    read_attempt_summaries,
    state_reason,
)
from tradewind.plans.version_records import Budget, StoredVersions, VersionNode
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, attempt_path, write_attempt
from tradewind.records.info_files import INFO_FILE, write_step_info
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.record import Record, Status
from tradewind.steps import ExecutorStep, ResolvedStep, output_path_of, resolve, versioned
from tradewind.storage import Roots
from tradewind.storage.files import write_text

DAY = 86400.0
NOW = 1_800_000_000.0
EVERYWHERE = Roots(("/", "memory://"))


def make(prefix: str | Path, *steps: ExecutorStep) -> tuple[ResolvedStep, ...]:
    return resolve(steps, str(prefix)).steps


def store(steps: Sequence[ResolvedStep], days_ago: float | None = None) -> None:
    """Store records of these versions, as a run does."""
    for step in steps:
        write_step_info(step, "module.function")
        if days_ago is not None:
            lease = Lease("owner", NOW - days_ago * DAY, Phase.COMMITTED, attempt=1)
            write_text(lease_path(step.output_path), lease.to_json())


def train(rate: float, seed: int = 1, name: str = "train") -> ExecutorStep:
    tokenize = ExecutorStep("tokenize", None, {"seed": versioned(seed)})
    return ExecutorStep(name, None, {"learning_rate": versioned(rate), "data": output_path_of(tokenize)})


def reasons(steps: Sequence[ResolvedStep]) -> dict[str, str]:
    explained = explain_new_versions([(step, Record()) for step in steps], roots=EVERYWHERE).reasons
    return {step.name: explained[step.output_path] for step in steps}


def test_new_version_is_explained_by_its_changes(tmp_path: Path) -> None:
    old = make(tmp_path, train(0.003))
    store(old, days_ago=1.2)
    assert reasons(make(tmp_path, train(0.001))[1:]) == {
        "train": f"config.learning_rate 0.003 → 0.001, since version `{old[1].hash}` of 2027-01-14 03:12 UTC"
    }
    assert reasons(make(tmp_path, train(0.003, seed=2))) == {
        "tokenize": f"config.seed 1 → 2, since version `{old[0].hash}` of 2027-01-14 03:12 UTC",
        "train": f"config.seed 1 → 2 in input `tokenize`, since version `{old[1].hash}` of 2027-01-14 03:12 UTC",
    }


def test_nearest_version_has_fewest_changes_then_is_newest(tmp_path: Path) -> None:
    store(make(tmp_path, train(0.1, seed=9)), days_ago=1)
    older, newer, unknown = (make(tmp_path, train(rate)) for rate in (0.2, 0.3, 0.4))
    store(older, days_ago=9)
    store(newer, days_ago=8)
    store(unknown[1:])
    (new,) = make(tmp_path, train(0.5))[1:]
    found = find_history([new], EVERYWHERE).nearest[new.output_path]
    assert [version.hash for version in found][:3] == [newer[1].hash, older[1].hash, unknown[1].hash]
    assert [len(version.changes) for version in found] == [1, 1, 1, 2]


def test_earlier_versions_have_the_same_folder_and_name(tmp_path: Path) -> None:
    for name in ("runs/big/train", "train-x"):
        store(make(tmp_path, train(0.1, name=name)), days_ago=0)
    explained = reasons(make(tmp_path, train(0.2, name="runs/big/train"), train(0.2)))
    assert explained["runs/big/train"].startswith("config.learning_rate 0.1 → 0.2, since version")
    assert explained["train"] == "never ran"
    assert set(reasons(make(tmp_path / "nowhere", train(0.2))).values()) == {"never ran"}
    store(make(tmp_path, train(0.1)), days_ago=0)
    (new,) = make(tmp_path, train(0.2).with_output_path("train-000000"))[1:]
    assert reasons([new]) == {"train": "never ran"}, "an explicit path has no history"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version": {"name": "train"}}',
        json.dumps({"version": {"name": "other", "config": {}, "dependencies": []}}).encode(),
        None,
    ],
)
def test_invalid_step_info_is_skipped(tmp_path: Path, content: bytes | None) -> None:
    (new, other) = (make(tmp_path, train(rate))[1] for rate in (0.2, 0.1))
    store([other], days_ago=2)
    broken = tmp_path / "train-abcdef"
    broken.mkdir()
    if content is None:
        (broken / INFO_FILE).mkdir()
    else:
        (broken / INFO_FILE).write_bytes(content)
        (broken / ".executor_status.lock").write_bytes(content)
    (tmp_path / "train-fedcba").write_text("a file")
    assert reasons([new])["train"].endswith("0.1 → 0.2, since version `ea1fbc` of 2027-01-13 08:00 UTC")


# ---- inputs that appear in records by name only


def chain(length: int, seed: int, override: str | None = None) -> ExecutorStep:
    step = ExecutorStep("s0", None, {"seed": versioned(seed)})
    for number in range(1, length):
        path = override if number == length - 2 else None
        step = ExecutorStep(f"s{number}", None, {"input": output_path_of(step)}, override_output_path=path)
    return step


@pytest.mark.parametrize(("length", "override"), [(40, None), (8, "fixed")], ids=["computed paths", "explicit path"])
def test_cause_is_found_through_stored_records(tmp_path: Path, length: int, override: str | None) -> None:
    store(make(tmp_path, chain(length, 1, override)), days_ago=1)
    [reason] = reasons(make(tmp_path, chain(length, 2, override))[-1:]).values()
    assert reason.startswith("config.seed 1 → 2 in input `s0`, since version")


def test_path_now_holding_other_version_is_not_trusted(tmp_path: Path) -> None:
    old, between = (make(tmp_path, chain(8, seed, override="fixed")) for seed in (1, 5))
    store(old, days_ago=1)
    store(between[6:7])
    new = make(tmp_path, chain(8, 2, override="fixed"))
    assert f"no record of `{old[6].hash}` at hand" in reasons(new[-1:])["s7"]


# ---- bounds


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the requests to the memory store."""
    paths: list[str] = []

    def recording(method: Callable[..., Any]) -> Callable[..., Any]:
        def record(self: MemoryFileSystem, path: str, *args: Any, **kwargs: Any) -> Any:
            paths.append(path)
            return method(self, path, *args, **kwargs)

        return record

    for name in ("cat_file", "ls"):
        monkeypatch.setattr(MemoryFileSystem, name, recording(getattr(MemoryFileSystem, name)))
    return paths


def test_all_steps_share_one_listing_of_a_folder(prefix: str, requests: list[str]) -> None:
    steps = [train(0.1, name=f"{folder}/train{number}") for folder in "ab" for number in range(50)]
    find_history(make(prefix, *steps), EVERYWHERE)
    folder = prefix.removeprefix("memory:/")
    assert sorted(requests) == [folder, f"{folder}/a", f"{folder}/b"]


def test_only_the_newest_versions_are_compared(prefix: str, requests: list[str]) -> None:
    ages = {}
    for age in range(20, 0, -1):
        (step,) = make(prefix, train(age))[1:]
        store([step], days_ago=age)
        ages[step.hash] = age
    requests.clear()
    (new,) = make(prefix, train(100))[1:]
    found = find_history([new], EVERYWHERE).nearest[new.output_path]
    assert [ages[version.hash] for version in found] == list(range(1, 9))
    assert sum(path.endswith(INFO_FILE) for path in requests) == 8


def test_history_search_bounds_requests_and_lists_omissions(prefix: str, requests: list[str]) -> None:
    for number in range(60):
        store(make(prefix, train(0.1, name=f"train{number}"))[1:], days_ago=1)
    requests.clear()
    new = make(prefix, *(train(0.2, name=f"train{number}") for number in range(60)))
    history = find_history(new, EVERYWHERE, SearchLimits(requests=40))
    assert len(requests) <= 40
    compared = [version for found in history.nearest.values() for version in found]
    assert len(compared) == 29 and len(history.not_compared) == 31, "a quarter is kept for deeper records and for ages"
    assert sum(version.made_at is not None for version in compared) == 10


def test_reason_states_that_versions_were_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(make(tmp_path, train(0.1))[1:], days_ago=1)
    monkeypatch.setattr("tradewind.plans.reasons.find_history.__defaults__", (SearchLimits(requests=1),))
    assert reasons(make(tmp_path, train(0.2))[1:]) == {
        "train": "never ran in this version; earlier versions were not compared, `why train` does"
    }


@pytest.mark.slow
def test_steps_of_long_chain_share_their_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(make(tmp_path, chain(300, 1)), days_ago=1)
    new = make(tmp_path, chain(300, 2))
    compared: list[str] = []

    def record(old: VersionNode, other: VersionNode) -> Inputs:
        compared.append(other.name)
        return compare_inputs(old, other)

    monkeypatch.setattr("tradewind.plans.differences.compare_inputs", record)
    assert all(text.startswith("config.seed 1 → 2") for text in reasons(new).values())
    assert len(compared) <= 2 * 300, "each version once, and once more where a record holds it whole"


def test_reading_stops_at_the_request_limit(tmp_path: Path) -> None:
    steps = make(tmp_path, chain(60, 1))
    store(steps)
    stored = StoredVersions(Budget(3), EVERYWHERE)
    assert list(stored.read([steps[-1].output_path])) == [steps[-1].output_path]
    stored.read_deeper()
    assert stored.lookup("s58", steps[58].hash) is not None
    assert stored.lookup("s0", steps[0].hash) is None


# ---- reasons of every state


BY = {"dag": "nightly", "run": "r1", "task": "train", "map_index": -1, "try": 1}


def rated(name: str, rate: float = 0.1) -> ExecutorStep:
    return ExecutorStep(name, None, {"rate": versioned(rate)})


def lease(phase: Phase | None, **fields: Any) -> Lease:
    return Lease("owner", NOW, phase, **{"attempt": 2, "job": "job-7", "by": BY, **fields})


(STEP,) = make("/p", rated("train"))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(), "never ran"),
        (Record(Status.SUCCESS, has_output=True), "finished before"),
        (Record(None, lease(Phase.COMMITTED), has_output=True), "finished before by run r1 of nightly"),
        (Record(Status.SUCCESS), "ran, output gone"),
        (Record(None, lease(Phase.COMMITTED)), "ran, output gone"),
        (Record(Status.FAILED), "failed before: ValueError: no"),
        (Record(Status.DEP_FAILED), "an input failed before"),
        (Record(None, lease(Phase.FAILED)), "failed before: ValueError: no"),
        (Record(None, lease(Phase.STOPPED)), "stopped before"),
        (Record(None, lease(Phase.STOPPED, stop_requested=BY | {"run": "r2"})), "stopped before by run r2 of nightly"),
        (Record(None, lease(Phase.RUNNING), lease_age_s=1000), "started before, then its lease expired"),
        (Record(Status.RUNNING), "started before, then its lease expired"),
        (Record(None, lease(Phase.RUNNING)), "in progress in run r1 of nightly since 8:00 on job job-7"),
        (Record(None, lease(Phase.CLAIMED, job="", by={})), "in progress since 8:00"),
        (Record(None, lease(Phase.CLAIMED, job="", by={"hook": "mine"})), "in progress in hook mine since 8:00"),
        (Record(Status.RUNNING, Lease("host-1", NOW)), "in progress in Marin's executor, worker host-1"),
    ],
)
def test_reason_describes_the_state(record: Record, reason: str) -> None:
    assert state_reason(STEP, record, {STEP.output_path: "ValueError: no"}.get, since="8:00") == reason


# ---- reads


def attempt(number: int, error: AttemptError | None = None, started_at: str = "") -> Attempt:
    made = Attempt(number, "job", "cluster", {}, {}, started_at=started_at)
    return made.ended(AttemptOutcome.FAILED, error) if error else made


def test_errors_of_all_failed_steps_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = make(f"memory://{tmp_path.name}", *map(rated, "abcd"))
    errors = [
        AttemptError("ValueError", "\n  bad rate\nsecond line", "Traceback"),
        AttemptError("package.OutOfMemoryError", ""),
        AttemptError("E", "x" * 1000),
    ]
    for step, error in zip(steps, errors, strict=False):
        write_attempt(step.output_path, attempt(2, error))
    reads: list[int] = []
    cat: Callable[..., Any] = MemoryFileSystem.cat_ranges

    def record(self: MemoryFileSystem, paths: Any, *args: Any, **kwargs: Any) -> Any:
        reads.append(len(paths))
        return cat(self, paths, *args, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", record)
    explained = explain_steps([(step, Record(None, lease(Phase.FAILED))) for step in steps], roots=EVERYWHERE).reasons
    assert reads == [4]
    assert [explained[step.output_path] for step in (*steps[:2], steps[3])] == [
        "failed before: ValueError: bad rate",
        "failed before: package.OutOfMemoryError",
        "failed before",
    ]
    assert len(explained[steps[2].output_path]) < 200


def test_start_of_running_attempt_is_read(tmp_path: Path) -> None:
    (step,) = make(tmp_path, rated("a"))
    write_attempt(step.output_path, attempt(2, started_at="2027-01-15T09:00:30+01:00"))
    explained = explain_steps([(step, Record(None, lease(Phase.CLAIMED)))], roots=EVERYWHERE).reasons
    assert explained == {step.output_path: "in progress in run r1 of nightly since 2027-01-15 08:00 UTC on job job-7"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"error": 3}', '{"started_at": "yesterday"}', '{"error": {}}'])
def test_invalid_attempt_file_has_an_empty_summary(tmp_path: Path, text: str) -> None:
    (step,) = make(tmp_path, rated("a"))
    write_text(attempt_path(step.output_path, 2), text)
    assert read_attempt_summaries({step.output_path: Record(None, lease(Phase.FAILED))}) == {
        step.output_path: AttemptSummary()
    }


def test_every_unfinished_step_has_a_reason(tmp_path: Path) -> None:
    (old,) = make(tmp_path, rated("a", 0.5))
    write_step_info(old, "f")
    new, failed, done = make(tmp_path, *map(rated, "abc"))
    records = [(new, Record()), (failed, Record(Status.FAILED)), (done, Record(Status.SUCCESS, has_output=True))]
    assert explain_steps(records, roots=EVERYWHERE).reasons == {
        new.output_path: f"config.rate 0.5 → 0.1, since version `{old.hash}`",
        failed.output_path: "failed before",
    }


def test_unavailable_store_leaves_the_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the disk is gone")

    steps = make(f"memory://{tmp_path.name}", *map(rated, "ab"))
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    monkeypatch.setattr(MemoryFileSystem, "ls", fail)
    records = [(steps[0], Record(None, lease(Phase.FAILED))), (steps[1], Record())]
    explained = explain_steps(records, roots=EVERYWHERE).reasons
    assert list(explained.values()) == ["failed before", "never ran"]
    assert caplog.text.count("the disk is gone") == 2
