"""A step with a mirror gets a path in its run's prefix, or fails before the function call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.driven import REPOSITORY, claim_step, finish, result_of, run_attempt, start
from tests.runtime.regions import put, texts
from tradewind.plans.prefixes import MIRROR_VARIABLE
from tradewind.records.attempts import Attempt, AttemptOutcome
from tradewind.serialization.references import CodeFolder
from tradewind.steps import ExecutorStep, mirrored, output_path_of, this_output_path, versioned

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Reading:
    output_path: Any
    data: Any
    tokens: Any = None


def reads(config: Reading) -> dict[str, Any]:
    return {"path": config.data, "texts": sorted(path.read_text() for path in Path(config.data).iterdir())}


def reading(name: str, tmp_path: Path, budget_gb: float = 10) -> Attempt:
    raw = ExecutorStep("raw", None, None)
    data = mirrored(versioned("data/raw"), budget_gb=budget_gb)
    step = ExecutorStep(name, reads, Reading(this_output_path(), data, mirrored(output_path_of(raw))))
    return claim_step(step, tmp_path / "us", f"{tmp_path}/us", f"{tmp_path}/eu")


def test_concurrent_runs_share_one_copy_in_their_prefix(tmp_path: Path) -> None:
    put(f"{tmp_path}/eu/data/raw", {"a": "1", "b": "2"})
    attempts = [reading(name, tmp_path) for name in ("one", "two")]
    ended = [finish(driver) for driver in [start(attempt) for attempt in attempts]]
    for attempt, (code, text) in zip(attempts, ended, strict=True):
        assert code == 0, text
        assert result_of(attempt.spec["output_path"]) == {"path": f"{tmp_path}/us/data/raw", "texts": ["1", "2"]}
    assert sum("config.data: copying 2 bytes (2 files)" in text for _, text in ended) == 1


def test_step_over_mirror_budget_fails_by_field_before_copy(tmp_path: Path) -> None:
    put(f"{tmp_path}/eu/data/raw", {"a": "x" * 2000})
    code, _, ended = run_attempt(reading("one", tmp_path, budget_gb=1e-6))
    assert ended.error is not None
    assert (code, ended.outcome, ended.error.type) == (1, AttemptOutcome.FAILED, "MirrorError")
    assert ended.error.message.startswith("Step 'one': config.data: 2 kB (1 file) would be copied")
    assert "data/raw/a" not in texts(f"{tmp_path}/us")


def test_script_copies_from_prefixes_in_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tradewind.local.run import run_experiment
    from tradewind.plans.selection import Selection

    put(f"{tmp_path}/eu/data/raw", {"a": "1"})
    monkeypatch.setenv(MIRROR_VARIABLE, f"{tmp_path}/us, {tmp_path}/eu")
    step = ExecutorStep("one", reads, Reading(this_output_path(), mirrored("data/raw")))
    made = run_experiment([step], f"{tmp_path}/us", CodeFolder(REPOSITORY), selection=Selection())
    assert result_of(made[step])["texts"] == ["1"]
