"""A step of a plan beside its earlier versions, also before it has started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tradewind import ExecutorStep, output_path_of, versioned
from tradewind.plans.plan import Plan
from tradewind.plans.planning import plan_now, read_outputs
from tradewind.plans.step_history import StepHistory, parse_version_chunk, read_step_history, version_chunks
from tradewind.records.attempts import Attempt, AttemptOutcome, write_attempt
from tradewind.records.info_files import write_step_info
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.steps import ResolvedStep, resolve
from tradewind.storage import OutsideRootsError, Roots
from tradewind.storage.files import write_text

NOW = 1_800_000_000.0
SPEC = {"resources": {"kind": "tpu_slice", "slice_type": "v4-16"}}


def work(config: Any) -> None: ...


def chain(prefix: Path, seed: int, rate: float = 0.1, length: int = 6) -> dict[str, ResolvedStep]:
    step = ExecutorStep("raw", work, {"seed": versioned(seed)})
    for number in range(length):
        step = ExecutorStep(f"clean{number}", work, {"input": output_path_of(step)})
    train = ExecutorStep("train", work, {"rate": versioned(rate), "data": output_path_of(step)})
    return {each.name: each for each in resolve([train], str(prefix)).steps}


def store(steps: dict[str, ResolvedStep], hours: int = 2) -> None:
    for step in steps.values():
        write_step_info(step, "module.function")
        start, end = "2026-11-01T00:00:00+00:00", f"2026-11-01T0{hours}:00:00+00:00"
        attempt = Attempt(1, "job", "", {}, SPEC, started_at=start, ended_at=end, outcome=AttemptOutcome.SUCCEEDED)
        write_attempt(step.output_path, attempt)
        write_text(lease_path(step.output_path), Lease("o", NOW, Phase.COMMITTED, attempt=1).to_json())


def plan_of(prefix: Path, steps: dict[str, ResolvedStep]) -> Plan:
    outputs = read_outputs([step.output_path for step in steps.values()])
    return plan_now(str(prefix), list(steps.items()), ["train"], outputs)


def history(prefix: Path, steps: dict[str, ResolvedStep], name: str, against: str | None = None) -> StepHistory:
    """Read the history of a step as the page does, from the plan's XComs."""
    plan = plan_of(prefix, steps)
    chunks = json.loads(json.dumps(version_chunks(plan, steps)))
    records = {name: record for chunk in chunks.values() for name, record in parse_version_chunk(chunk).items()}
    line = plan.of_task(name)
    assert line is not None
    return read_step_history(line, plan, records, Roots.of([str(prefix)]), against)


def marks(found: StepHistory) -> dict[str, str]:
    assert found.config is not None
    return {".".join(row.keys): row.mark.value for row in found.config.rows}


def test_unstarted_step_is_compared_down_to_changed_input(tmp_path: Path) -> None:
    old = chain(tmp_path, 1)
    store(old)
    found = history(tmp_path, chain(tmp_path, 2), "train")
    [version] = found.versions
    assert (version.hash, found.compared, found.is_complete) == (old["train"].hash, old["train"].hash, True)
    [cause] = version.causes
    assert (cause.step, cause.what, cause.way[0]) == ("raw", "config.seed 1 → 2", "clean5")
    assert marks(found) == {"data": "INPUT", "rate": "SAME"}
    assert version.run is not None and (version.run.hours, version.run.resources) == (2.0, "v4-16")
    assert found.run is None


def test_inputs_in_the_store_are_read_for_an_unstarted_step(tmp_path: Path) -> None:
    store(chain(tmp_path, 1))
    new = chain(tmp_path, 2)
    store({name: step for name, step in new.items() if name != "train"})
    [cause] = history(tmp_path, new, "train").versions[0].causes
    assert (cause.step, cause.what) == ("raw", "config.seed 1 → 2")


def test_nearest_version_is_compared_unless_another_is_named(tmp_path: Path) -> None:
    near, far = chain(tmp_path, 1, 0.2), chain(tmp_path, 9, 0.3)
    store(near)
    store(far)
    new = chain(tmp_path, 1)
    found = history(tmp_path, new, "train")
    assert [version.hash for version in found.versions] == [near["train"].hash, far["train"].hash]
    assert marks(found) == {"data": "SAME", "rate": "CHANGED"}
    assert marks(history(tmp_path, new, "train", far["train"].hash)) == {"data": "INPUT", "rate": "CHANGED"}


def test_finished_step_is_compared_by_its_own_record(tmp_path: Path) -> None:
    steps = chain(tmp_path, 1)
    store(steps, hours=3)
    store(chain(tmp_path, 2))
    assert version_chunks(plan_of(tmp_path, steps), steps) == {}
    found = history(tmp_path, steps, "raw")
    assert found.run is not None and found.run.hours == 3.0
    assert marks(found) == {"seed": "CHANGED"}


def test_first_version_shows_its_config_alone(tmp_path: Path) -> None:
    found = history(tmp_path, chain(tmp_path, 1), "raw")
    assert (found.versions, found.compared, marks(found)) == ((), None, {"seed": "SAME"})


def test_path_outside_the_roots_is_not_read(tmp_path: Path) -> None:
    steps = chain(tmp_path / "a", 1)
    plan = plan_of(tmp_path / "a", steps)
    with pytest.raises(OutsideRootsError):
        read_step_history(plan.steps[0], plan, {}, Roots.of([str(tmp_path / "b")]))


def test_link_beside_the_output_is_not_followed_outside(tmp_path: Path) -> None:
    outside, prefix = tmp_path / "outside", tmp_path / "inside"
    store(old := chain(outside, 1))
    prefix.mkdir()
    (prefix / Path(old["raw"].output_path).name).symlink_to(old["raw"].output_path)
    assert history(prefix, chain(prefix, 2), "raw").versions == ()


def test_records_of_an_xcom_are_small_and_checked(tmp_path: Path) -> None:
    steps = chain(tmp_path, 1, length=20)
    [chunk] = version_chunks(plan_of(tmp_path, steps), steps).values()
    assert max(len(json.dumps(record)) for record in chunk.values()) < 200
    assert set(parse_version_chunk(chunk)) == {step.version_name for step in steps.values()}
    for value in (None, [], "x", {"a": 1}, {"a": {"name": 1}}, {"a": {"name": "a", "config": {}, "dependencies": [7]}}):
        assert parse_version_chunk(value) == {}
