"""``explain_step`` and ``explain_difference`` report the root cause and accept any version name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tradewind.cli.experiments.plan import CommandError, UsageError, explain_difference, explain_step, find_version
from tradewind.plans.plan import Decision, PlannedStep
from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, write_attempt
from tradewind.records.info_files import write_step_info
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.record import Record, read_record
from tradewind.steps import ExecutorStep, ResolvedStep, output_path_of, resolve, versioned
from tradewind.storage import Roots
from tradewind.storage.files import write_text

NOW = 1_800_000_000.0
EVERYWHERE = Roots(("/", "memory://"))
BY = {"dag": "nightly", "run": "r1"}


def make(prefix: Path, rate: float, seed: int = 1, name: str = "train") -> tuple[ResolvedStep, ...]:
    step = ExecutorStep("raw", None, {"seed": versioned(seed)})
    for number in range(6):
        step = ExecutorStep(f"clean{number}", None, {"input": output_path_of(step)})
    train = ExecutorStep(name, None, {"rate": versioned(rate), "data": output_path_of(step)})
    return resolve([train], str(prefix)).steps


def write_records(*steps: ResolvedStep, days_ago: float = 1) -> None:
    for step in steps:
        write_step_info(step, "module.function")
        lease = Lease("owner", NOW - days_ago * 86400, Phase.COMMITTED, attempt=1, by=BY)
        write_text(lease_path(step.output_path), lease.to_json())


def test_a_new_version_is_explained_by_its_nearest_ones(tmp_path: Path) -> None:
    near, far = make(tmp_path, 0.3), make(tmp_path, 0.3, seed=9)
    write_records(*near, days_ago=3)
    write_records(*far, days_ago=1)
    new = make(tmp_path, 0.1)[-1]
    planned = PlannedStep("train", "train", new.hash, new.output_path, Decision.RUN, "differs from ...")
    explained = explain_step(new, Record(), roots=EVERYWHERE, planned=planned)
    assert explained.lines == (
        f"train-{new.hash}: RUN, differs from ...",
        "  state: never ran",
        f"  output path: {new.output_path}",
        f"  differs from version `{near[-1].hash}` of 2027-01-12 08:00 UTC at {near[-1].output_path}:",
        "    config.rate 0.3 → 0.1",
        f"  differs from version `{far[-1].hash}` of 2027-01-14 08:00 UTC at {far[-1].output_path}:",
        "    config.rate 0.3 → 0.1",
        "    because input `raw` changed (through `clean5`, `clean4`, `clean3`, `clean2`, `clean1`, …):",
        "      config.seed 9 → 1",
    )
    data = json.loads(json.dumps(explained.fields))
    assert data["decision"] == "RUN" and data["state"] == "none" and data["producer"] is None
    assert [cause["what"] for cause in data["root_causes"]] == ["config.rate 0.3 → 0.1"]
    assert [version["hash"] for version in data["nearest_versions"]] == [near[-1].hash, far[-1].hash]
    assert data["nearest_versions"][1]["changes"][1]["step"] == "raw"


def test_a_failed_step_is_explained_by_its_error(tmp_path: Path) -> None:
    step = make(tmp_path, 0.1)[-1]
    error = AttemptError("ValueError", "bad rate\nmore")
    write_attempt(step.output_path, Attempt(4, "job", "cluster", {}, {}).ended(AttemptOutcome.FAILED, error))
    lease = Lease("owner", NOW, Phase.FAILED, attempt=4, by=BY)
    explained = explain_step(step, Record(lease=lease), roots=EVERYWHERE)
    assert explained.lines[:2] == (f"train-{step.hash}", "  state: failed before: ValueError: bad rate (attempt 4)")
    assert explained.lines[-1] == "  no earlier version exists beside it"
    assert explained.fields["attempt"] == 4


def test_finished_step_is_explained_by_its_producer(tmp_path: Path) -> None:
    step = make(tmp_path, 0.1)[-1]
    write_records(step)
    explained = explain_step(step, read_record(step.output_path), roots=EVERYWHERE)
    assert "  producer: run r1 of nightly" in explained.lines


def test_of_many_earlier_versions_the_text_names_the_nearest(tmp_path: Path) -> None:
    for number in range(12):
        write_records(make(tmp_path, number)[-1], days_ago=number + 1)
    explained = explain_step(make(tmp_path, 99)[-1], Record(), roots=EVERYWHERE)
    assert "\n".join(explained.lines).count("differs from version") == 3
    assert explained.lines[-1].startswith("  and from 9 that are further away: `")
    assert len(explained.fields["nearest_versions"]) == 12


def test_two_versions_are_compared_to_the_root_cause(tmp_path: Path) -> None:
    old, new = make(tmp_path, 0.3), make(tmp_path, 0.3, seed=2)
    write_records(*old, *new)
    explained = explain_difference(old[-1].hash, f"train-{new[-1].hash}", str(tmp_path))
    assert explained.lines == (
        f"from `train` at {old[-1].output_path} to `train` at {new[-1].output_path}:",
        "  because input `raw` changed (through `clean5`, `clean4`, `clean3`, `clean2`, `clean1`, …):",
        "    config.seed 1 → 2",
    )
    data = json.loads(json.dumps(explained.fields))
    assert data["changes"][0]["where"] == "config.seed" and data["new"]["output_path"] == new[-1].output_path


def test_diff_of_equal_and_of_renamed_versions(tmp_path: Path) -> None:
    (step,) = make(tmp_path, 0.3)[-1:]
    write_records(step)
    explained = explain_difference(step.hash, step.output_path + "/", str(tmp_path))
    assert explained.lines[1:] == ("  the versions are the same",) and explained.fields["is_same"]
    other = make(tmp_path, 0.3, name="tune")[-1]
    write_records(other)
    assert explain_difference(step.hash, other.hash, str(tmp_path)).lines[1:] == ("  name `train` → `tune`",)


@pytest.mark.parametrize("name", ["train", "runs/train", "runs/big/train"])
def test_a_hash_is_found_in_folders_three_deep(tmp_path: Path, name: str) -> None:
    (step,) = make(tmp_path, 0.3, name=name)[-1:]
    write_records(step)
    (tmp_path / "file").write_text("no folder")
    (tmp_path / f"empty-{step.hash}").mkdir()
    assert find_version(step.hash, str(tmp_path)).output_path == step.output_path
    assert find_version(f"{name}-{step.hash}", str(tmp_path)).version == step.version


def test_hash_inside_output_or_of_two_versions_is_refused(tmp_path: Path) -> None:
    (step,) = make(tmp_path, 0.3, name="outer-abcdef/inner")[-1:]
    write_records(step)
    with pytest.raises(CommandError):
        find_version(step.hash, str(tmp_path))
    assert find_version(step.output_path, "/elsewhere").version == step.version
    for name in ("a", "b"):
        write_text(f"{tmp_path}/{name}-123456/.executor_info", json.dumps({"name": name, "version": step.version}))
    with pytest.raises(UsageError, match=f"{tmp_path}/a-123456, {tmp_path}/b-123456"):
        explain_difference("123456", "123456", str(tmp_path))


@pytest.mark.parametrize("word", ["000000", "train-000000", "/nowhere/train-000000", "nothing"])
def test_an_unknown_version_is_one_clear_error(tmp_path: Path, word: str) -> None:
    with pytest.raises(CommandError, match=rf"There is no version record for '{word}' below {tmp_path}"):
        explain_difference(word, word, str(tmp_path))
