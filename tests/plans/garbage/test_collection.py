"""Garbage collection keeps the outputs that a DAG, run or pin requires and removes the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plans.garbage.outputs import MONTH_S, Config, aged, garbage_of, made, steps
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage, find_garbage_below
from tradewind.records.discovery import find_outputs
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.records.pins import Pin, add_pin, remove_pin, set_pin
from tradewind.records.record import STATUS_FILE, RecordState, Status, write_status
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned
from tradewind.storage.files import write_text
from tradewind.storage.trees import list_files


def test_outputs_are_found_in_plain_folders_not_within_outputs(any_prefix: str) -> None:
    raw, train = map(made, steps(any_prefix, 1))
    write_text(f"{any_prefix}/by_marin/deep/x-123456/{STATUS_FILE}", "SUCCESS")
    write_text(f"{train}/inner-654321/{STATUS_FILE}", "SUCCESS")
    write_text(f"{any_prefix}/experiments/all-123456.json", "{}")
    write_text(f"{any_prefix}/no_output/notes.txt", "")
    add_pin(any_prefix, Pin(raw, "ada", "now"))
    assert list(find_outputs(any_prefix)) == [f"{any_prefix}/by_marin/deep/x-123456", raw, train]
    assert not find_outputs(f"{any_prefix}/nowhere")


# ---- outputs that are kept


def test_what_nobody_needs_is_garbage_with_its_bytes(prefix: str) -> None:
    old, new = steps(prefix, 1), steps(prefix, 2)
    paths = [made(step, size=1000) for step in (*old, *new)]
    aged(paths)
    needs = RequiredOutputs()
    for step in new:
        needs.add_step(step)
    sweep = find_garbage(prefix, needs, MONTH_S)
    assert [each.path for each in sweep.garbage] == paths[:2]
    assert [(each.name, each.state) for each in sweep.garbage] == [
        ("data/raw", RecordState.FINISHED),
        ("train", RecordState.FINISHED),
    ]
    on_disk = sum(file.size for path in paths[:2] for file in list_files(path))
    assert sweep.bytes == on_disk > 2000
    assert (sweep.outputs, sweep.needed, sweep.young) == (4, 2, 0)


def test_what_changed_lately_is_kept(prefix: str) -> None:
    old, young = (made(steps(prefix, value)[0]) for value in (1, 2))
    aged([old])
    sweep = find_garbage(prefix, RequiredOutputs(), MONTH_S)
    assert ([each.path for each in sweep.garbage], sweep.young) == ([old], 1)
    assert garbage_of(prefix) == [old] and young != old


def test_what_a_pinned_output_was_made_from_is_kept_with_it(prefix: str) -> None:
    paths = [made(step) for step in steps(prefix, 1)]
    aged(paths)
    assert garbage_of(prefix) == paths
    add_pin(prefix, Pin(paths[1], "ada", "now"))
    assert garbage_of(prefix) == []


def test_inputs_of_pinned_nested_output_are_kept(prefix: str) -> None:
    """Only a step that reads a nested output leads to it: the search does not look inside outputs."""
    outer, raw = ExecutorStep("outer", None, Config(1)), ExecutorStep("data/raw", None, Config(1))
    [host] = resolve([outer], prefix).steps
    inner = ExecutorStep("inner", None, Config(raw), override_output_path=f"{host.output_path}/inner")
    paths = [made(step) for step in (host, *resolve([inner], prefix).steps)]
    aged(paths)
    assert sorted(garbage_of(prefix)) == sorted(paths[:2])
    add_pin(prefix, Pin(paths[2], "ada", "now"))
    assert garbage_of(prefix) == []


def test_a_pin_counts_wherever_it_was_set(any_prefix: str) -> None:
    """Users may have set the pin at a prefix below or above this one."""
    outer, inner = (made(steps(prefix, 1)[0]) for prefix in (any_prefix, f"{any_prefix}/team"))
    add_pin(f"{any_prefix}/team", Pin(inner, "ada", "now"))
    assert [each.path for each in find_garbage(any_prefix, RequiredOutputs(), 0.0).garbage] == [outer]
    assert [each.path for each in find_garbage(f"{any_prefix}/team", RequiredOutputs(), 0.0).garbage] == []
    remove_pin(f"{any_prefix}/team", inner)
    add_pin(any_prefix, Pin(inner, "ada", "now"))
    assert [each.path for each in find_garbage(f"{any_prefix}/team", RequiredOutputs(), 0.0).garbage] == []


def test_what_somebody_at_work_reads_is_kept(prefix: str) -> None:
    raw, train = steps(prefix, 1)
    paths = [made(raw), made(train)]
    aged(paths)
    store = LeaseStore(train.output_path)
    store.claim(store.read(), LeaseClaim(2, "job", "cluster", {"run": "r"}, ""))
    assert garbage_of(prefix) == []


def test_an_attempt_that_died_long_ago_is_garbage(prefix: str) -> None:
    raw, _ = steps(prefix, 1)
    LeaseStore(raw.output_path).claim(None, LeaseClaim(1, "job", "cluster", {"run": "r"}, ""))
    aged([raw.output_path])
    [found] = find_garbage(prefix, RequiredOutputs(), MONTH_S).garbage
    assert (found.path, found.name, found.state) == (raw.output_path, "", RecordState.STOPPED)


def test_an_output_of_marins_is_garbage_by_the_age_of_its_status(prefix: str) -> None:
    path = f"{prefix}/x-123456"
    write_text(f"{path}/model", "weights")
    write_status(path, Status.SUCCESS)
    assert garbage_of(prefix) == []
    aged([path])
    assert garbage_of(prefix) == [path]


def test_an_output_that_a_config_names_by_its_path_is_kept(prefix: str) -> None:
    paths = [made(step) for step in steps(prefix, 1)]
    aged(paths)
    reader = ExecutorStep("reader", None, Config({"shards": [f"{paths[1]}/part/*"]}))
    [resolved] = resolve([reader], prefix).steps
    needs = RequiredOutputs()
    needs.add_step(resolved)
    assert garbage_of(prefix, needs) == []
    made(resolved)
    add_pin(prefix, Pin(resolved.output_path, "ada", "now"))
    aged([resolved.output_path])
    assert garbage_of(prefix) == [], "the step info tells it as the DAG does"


def test_the_same_place_may_be_spelled_in_two_ways(prefix: str) -> None:
    paths = [made(step) for step in steps(f"file://{prefix}/", 1)]
    aged([path.removeprefix("file://") for path in paths])
    assert len(garbage_of(prefix)) == 2
    assert garbage_of(prefix, RequiredOutputs(paths={paths[1]})) == []


@pytest.mark.slow
def test_outputs_of_step_with_unknown_version_are_kept(prefix: str) -> None:
    paths = [made(step) for value in (1, 2) for step in steps(prefix, value)]
    aged(paths)
    assert garbage_of(prefix, RequiredOutputs(names={"data/raw"})) == sorted([paths[1], paths[3]])


def test_of_some_steps_only_their_own_outputs_are_garbage(prefix: str) -> None:
    raw, train = (made(step) for step in steps(prefix, 1))
    aged([raw, train])
    assert garbage_of(prefix, names={"train"}) == [train]


# ---- outputs outside the prefix


def chain(prefix: str, elsewhere: str) -> tuple[ResolvedStep, ...]:
    """Return ``data/raw``, its reader with output ``elsewhere``, and ``train`` that reads that one."""
    raw = ExecutorStep("data/raw", None, Config(versioned(1)))
    middle = ExecutorStep("middle", None, Config(raw), override_output_path=elsewhere)
    return resolve([ExecutorStep("train", None, Config(middle))], prefix).steps


def test_what_an_output_elsewhere_was_made_from_is_kept(prefix: str, tmp_path: Path) -> None:
    raw, middle, train = map(made, chain(prefix, str(tmp_path / "other" / "middle")))
    aged([raw, middle, train])
    sweep = find_garbage(prefix, RequiredOutputs(paths={train}, roots={str(tmp_path / "other")}), MONTH_S)
    assert sweep.garbage == () and sweep.needed == len([raw, train])
    assert [one.path for one in find_garbage(prefix, RequiredOutputs(), MONTH_S).garbage] == [raw, train]


def test_an_output_below_no_root_keeps_everything(prefix: str, tmp_path: Path) -> None:
    raw, middle, train = map(made, chain(prefix, str(tmp_path / "other" / "middle")))
    aged([raw, middle, train])
    write_text(f"{middle}/{INFO_FILE}", "{")
    sweep = find_garbage(prefix, RequiredOutputs(paths={train}), MONTH_S)
    assert sweep.garbage == () and sweep.unknown == (middle,)
    assert sweep.unread == (), "a record that may not be read was read"


def test_a_record_elsewhere_that_cannot_be_read_keeps_everything(prefix: str, tmp_path: Path) -> None:
    raw, middle, train = map(made, chain(prefix, str(tmp_path / "other" / "middle")))
    aged([raw, middle, train])
    write_text(f"{middle}/{INFO_FILE}", "{")
    sweep = find_garbage(prefix, RequiredOutputs(paths={train}, roots={middle}), MONTH_S)
    assert sweep.garbage == () and [one.file for one in sweep.unread] == [f"{middle}/{INFO_FILE}"]


def test_pin_at_one_prefix_keeps_inputs_at_other_prefix(prefix: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    raw, middle, train = map(made, chain(prefix, f"{other}/middle"))
    aged([raw, middle, train])
    set_pin(other, Pin(middle, "ada", "2026-03-01T00:00:00+00:00", "for the paper"))
    [here] = find_garbage_below([prefix], RequiredOutputs(), MONTH_S, also_below=[other])
    assert [one.path for one in here.garbage] == [train]
    here, there = find_garbage_below([prefix, other], RequiredOutputs(), MONTH_S)
    assert ([one.path for one in here.garbage], there.garbage) == ([train], ())


@pytest.mark.slow
def test_a_place_that_a_config_names_below_no_root_is_not_read(prefix: str, tmp_path: Path) -> None:
    far = str(tmp_path / "far" / "data")
    write_text(f"{far}/{INFO_FILE}", "{")
    [step] = resolve([ExecutorStep("train", None, Config(far))], prefix).steps
    train = made(step)
    assert find_garbage(prefix, RequiredOutputs(paths={train}), MONTH_S).unread == ()
    assert find_garbage(prefix, RequiredOutputs(paths={train}, roots={far}), MONTH_S).unread != ()
