"""A plan finds earlier versions beside the output, reads them together and reports what changed since."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tradewind.plans.differences import Inputs, compare_inputs
from tradewind.plans.reasons import PLAN_LIMITS, SearchLimits, explain_new_versions, find_history
from tradewind.plans.version_records import Budget, StoredVersions, VersionNode, read_infos
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


def keep(steps: Sequence[ResolvedStep], days_ago: float | None = None) -> None:
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
    told = explain_new_versions([(step, Record()) for step in steps], now=NOW, roots=EVERYWHERE)
    return {step.name: told[step.output_path] for step in steps}


def test_a_step_without_earlier_versions_never_ran(tmp_path: Path) -> None:
    assert reasons(make(tmp_path / "nowhere", train(0.001))) == {"tokenize": "never ran", "train": "never ran"}


def test_a_new_version_is_told_by_what_changed(tmp_path: Path) -> None:
    old = make(tmp_path, train(0.003))
    keep(old, days_ago=3)
    new = make(tmp_path, train(0.001))
    assert reasons(new[1:]) == {
        "train": f"differs from version `{old[1].hash}` of 3 days ago: config.learning_rate 0.003 → 0.001"
    }


def test_a_changed_input_is_the_reason_of_what_reads_it(tmp_path: Path) -> None:
    old = make(tmp_path, train(0.003))
    keep(old, days_ago=1.2)
    assert reasons(make(tmp_path, train(0.003, seed=2))) == {
        "tokenize": f"differs from version `{old[0].hash}` of 1 day ago: config.seed 1 → 2",
        "train": f"differs from version `{old[1].hash}` of 1 day ago: "
        "because input `tokenize` changed: config.seed 1 → 2",
    }


def test_nearest_version_has_fewest_changes_then_is_newest(tmp_path: Path) -> None:
    keep(make(tmp_path, train(0.1, seed=9)), days_ago=1)
    older = make(tmp_path, train(0.2))
    keep(older, days_ago=9)
    newer = make(tmp_path, train(0.3))
    keep(newer, days_ago=8)
    unknown = make(tmp_path, train(0.4))
    keep(unknown[1:])
    (new,) = make(tmp_path, train(0.5))[1:]
    found = find_history([new], EVERYWHERE).nearest[new.output_path]
    assert [version.hash for version in found][:3] == [newer[1].hash, older[1].hash, unknown[1].hash]
    assert [len(version.changes) for version in found] == [1, 1, 1, 2]


def test_an_output_of_marins_has_no_age(tmp_path: Path) -> None:
    (old,) = make(tmp_path, train(0.1))[1:]
    keep([old])
    (told,) = reasons(make(tmp_path, train(0.2))[1:]).values()
    assert told == f"differs from version `{old.hash}`: config.learning_rate 0.1 → 0.2"


def test_names_in_folders_have_their_earlier_versions_there(tmp_path: Path) -> None:
    keep(make(tmp_path, train(0.1, name="runs/big/train")), days_ago=0)
    keep(make(tmp_path, train(0.1, name="train-x")), days_ago=0)
    told = reasons(make(tmp_path, train(0.2, name="runs/big/train"), train(0.2)))
    assert told["runs/big/train"].endswith("of a moment ago: config.learning_rate 0.1 → 0.2")
    assert told["train"] == "never ran"


def test_step_with_explicit_output_path_has_no_history(tmp_path: Path) -> None:
    keep(make(tmp_path, train(0.1)), days_ago=0)
    (new,) = make(tmp_path, train(0.2).with_output_path("train-000000"))[1:]
    assert reasons([new]) == {"train": "never ran"}


def test_steps_that_ran_in_this_version_are_left_out(tmp_path: Path) -> None:
    (step,) = make(tmp_path, train(0.1))[1:]
    assert explain_new_versions([(step, Record(status=Status.FAILED))], now=NOW, roots=EVERYWHERE) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version": {"name": "train"}}',
        b"[" * 100_000,
        json.dumps({"version": {"name": "other", "config": {}, "dependencies": []}}).encode(),
        None,
    ],
)
def test_what_is_no_info_is_passed_over(tmp_path: Path, content: bytes | None) -> None:
    (new, other) = (make(tmp_path, train(rate))[1] for rate in (0.2, 0.1))
    keep([other], days_ago=2)
    broken = tmp_path / "train-abcdef"
    broken.mkdir()
    if content is None:
        (broken / INFO_FILE).mkdir()
    else:
        (broken / INFO_FILE).write_bytes(content)
        (broken / ".executor_status.lock").write_bytes(content)
    (tmp_path / "train-fedcba").write_text("a file")
    assert "of 2 days ago: config.learning_rate 0.1 → 0.2" in reasons([new])["train"]


# ---- inputs that appear in records by name only


def chain(length: int, seed: int, override: str | None = None) -> ExecutorStep:
    step = ExecutorStep("s0", None, {"seed": versioned(seed)})
    for number in range(1, length):
        path = override if number == length - 2 else None
        step = ExecutorStep(f"s{number}", None, {"input": output_path_of(step)}, override_output_path=path)
    return step


def test_the_cause_is_found_through_records_that_the_store_holds(tmp_path: Path) -> None:
    keep(make(tmp_path, chain(40, 1)), days_ago=1)
    new = make(tmp_path, chain(40, 2))
    assert reasons(new[-1:])["s39"].endswith("because input `s0` changed: config.seed 1 → 2")


def test_input_with_explicit_path_is_found_by_reader_info(tmp_path: Path) -> None:
    keep(make(tmp_path, chain(8, 1, override="fixed")), days_ago=1)
    new = make(tmp_path, chain(8, 2, override="fixed"))
    assert reasons(new[-1:])["s7"].endswith("because input `s0` changed: config.seed 1 → 2")


def test_path_now_holding_other_version_is_not_trusted(tmp_path: Path) -> None:
    old, between = (make(tmp_path, chain(8, seed, override="fixed")) for seed in (1, 5))
    keep(old, days_ago=1)
    keep(between[6:7])
    new = make(tmp_path, chain(8, 2, override="fixed"))
    assert f"no record of `{old[6].hash}` at hand" in reasons(new[-1:])["s7"]


# ---- bounds


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the requests to the memory store."""
    asked: list[str] = []
    cat, ls = MemoryFileSystem.cat_file, MemoryFileSystem.ls

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: MemoryFileSystem, path: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(path)
            return method(self, path, *args, **kwargs)

        return noted

    monkeypatch.setattr(MemoryFileSystem, "cat_file", noting(cat))
    monkeypatch.setattr(MemoryFileSystem, "ls", noting(ls))
    return asked


def test_all_steps_share_one_listing_of_a_folder(prefix: str, requests: list[str]) -> None:
    steps = [train(0.1, name=f"{folder}/train{number}") for folder in "ab" for number in range(50)]
    find_history(make(prefix, *steps), EVERYWHERE)
    folder = prefix.removeprefix("memory:/")
    assert sorted(requests) == [folder, f"{folder}/a", f"{folder}/b"]


def test_only_the_newest_versions_are_compared(prefix: str, requests: list[str]) -> None:
    ages = {make(prefix, train(number))[1].hash: 20 - number for number in range(20)}
    for number in range(20):
        keep(make(prefix, train(number))[1:], days_ago=20 - number)
    requests.clear()
    (new,) = make(prefix, train(100))[1:]
    found = find_history([new], EVERYWHERE).nearest[new.output_path]
    assert [ages[version.hash] for version in found] == list(range(1, 9))
    assert sum(path.endswith(INFO_FILE) for path in requests) == 8


def test_history_search_bounds_requests_and_lists_omissions(prefix: str, requests: list[str]) -> None:
    for number in range(60):
        keep(make(prefix, train(0.1, name=f"train{number}"))[1:], days_ago=1)
    requests.clear()
    new = make(prefix, *(train(0.2, name=f"train{number}") for number in range(60)))
    history = find_history(new, EVERYWHERE, SearchLimits(requests=40))
    assert len(requests) <= 40
    compared = [version for found in history.nearest.values() for version in found]
    assert len(compared) == 29 and len(history.not_compared) == 31, "a quarter is kept for deeper records and for ages"
    assert sum(version.made_at is not None for version in compared) == 10


def test_a_reason_says_when_earlier_versions_were_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(make(tmp_path, train(0.1))[1:], days_ago=1)
    monkeypatch.setattr("tradewind.plans.reasons.find_history.__defaults__", (SearchLimits(requests=1),))
    assert reasons(make(tmp_path, train(0.2))[1:]) == {
        "train": "never ran in this version; earlier versions were not compared, `why train` does"
    }


@pytest.mark.slow
def test_the_steps_of_a_long_chain_share_their_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(make(tmp_path, chain(300, 1)), days_ago=1)
    new = make(tmp_path, chain(300, 2))
    compared: list[str] = []

    def noting(old: VersionNode, other: VersionNode) -> Inputs:
        compared.append(other.name)
        return compare_inputs(old, other)

    monkeypatch.setattr("tradewind.plans.differences.compare_inputs", noting)
    assert all(text.endswith("config.seed 1 → 2") for text in reasons(new).values())
    assert len(compared) <= 2 * 300, "each version once, and once more where a record holds it whole"


def test_reading_stops_where_the_requests_end(tmp_path: Path) -> None:
    steps = make(tmp_path, chain(60, 1))
    keep(steps)
    stored = StoredVersions(Budget(3), EVERYWHERE)
    assert list(stored.read([steps[-1].output_path])) == [steps[-1].output_path]
    stored.read_deeper()
    assert stored.lookup("s58", steps[58].hash) is not None
    assert stored.lookup("s0", steps[0].hash) is None


def test_a_store_that_fails_costs_the_reasons_but_not_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the disk is gone")

    monkeypatch.setattr(LocalFileSystem, "ls", fail)
    assert explain_new_versions([(make(tmp_path, train(0.2))[1], Record())], now=NOW, roots=EVERYWHERE) == {}
    assert "the disk is gone" in caplog.text


def test_what_may_not_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(make(tmp_path, train(0.1)), days_ago=1)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError("not for you")

    monkeypatch.setattr(LocalFileSystem, "ls", refuse)
    assert reasons(make(tmp_path, train(0.2))[1:]) == {"train": "never ran"}


def test_infos_of_nothing_are_none(tmp_path: Path) -> None:
    assert read_infos([]) == {} and read_infos([str(tmp_path / "nothing")]) == {}
    assert PLAN_LIMITS.compared == 8 and PLAN_LIMITS.requests == 2000
