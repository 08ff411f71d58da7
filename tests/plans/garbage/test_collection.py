"""Garbage collection keeps the outputs that a DAG, run or pin requires and removes the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plans.garbage.outputs import (
    MONTH_S,
    Config,
    aged,
    files_of,
    garbage_of,
    made,
    make_raw,
    required_by,
    steps,
    sweep,
)
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage_below
from tradewind.records.discovery import find_outputs
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease_store import LeaseClaim, LeaseStore
from tradewind.records.pins import Pin, add_pin, remove_pin, set_pin
from tradewind.records.record import STATUS_FILE, RecordState, Status, write_status
from tradewind.steps import ExecutorStep, resolve, versioned
from tradewind.storage.files import write_text


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


def test_old_output_that_nothing_requires_is_garbage(prefix: str) -> None:
    old, required = ([made(step, size=1000) for step in steps(prefix, value)] for value in (1, 2))
    aged([*old, *required])
    young = made(steps(prefix, 3)[0])
    found = sweep(prefix, required_by(*steps(prefix, 2)))
    assert [(each.path, each.name, each.state) for each in found.garbage] == [
        (old[0], "data/raw", RecordState.FINISHED),
        (old[1], "train", RecordState.FINISHED),
    ]
    on_disk = sum(Path(path, file).stat().st_size for path in old for file in files_of(path))
    assert found.bytes == on_disk > 2000
    assert (found.outputs, found.needed, found.young) == (5, 2, 1) and young not in old


def test_inputs_of_pinned_output_are_kept(prefix: str) -> None:
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


def test_pin_applies_at_prefix_above_and_below(any_prefix: str) -> None:
    team = f"{any_prefix}/team"
    outer, inner = make_raw(any_prefix), make_raw(team)
    add_pin(team, Pin(inner, "ada", "now"))
    assert garbage_of(any_prefix, older_than_s=0.0) == [outer]
    assert garbage_of(team, older_than_s=0.0) == []
    remove_pin(team, inner)
    add_pin(any_prefix, Pin(inner, "ada", "now"))
    assert garbage_of(team, older_than_s=0.0) == []


def test_running_attempt_keeps_its_output_and_inputs(prefix: str) -> None:
    paths = [made(step) for step in steps(prefix, 1)]
    aged(paths)
    store = LeaseStore(paths[1])
    store.claim(store.read(), LeaseClaim(2, "job", "cluster", {"run": "r"}, ""))
    assert garbage_of(prefix) == []


def test_attempt_that_died_long_ago_is_garbage(prefix: str) -> None:
    path = steps(prefix, 1)[0].output_path
    LeaseStore(path).claim(None, LeaseClaim(1, "job", "cluster", {"run": "r"}, ""))
    aged([path])
    [found] = sweep(prefix).garbage
    assert (found.path, found.name, found.state) == (path, "", RecordState.STOPPED)


def test_age_of_marin_output_is_that_of_its_status(prefix: str) -> None:
    path = f"{prefix}/x-123456"
    write_text(f"{path}/model", "weights")
    write_status(path, Status.SUCCESS)
    assert garbage_of(prefix) == []
    aged([path])
    assert garbage_of(prefix) == [path]


def test_output_that_a_config_names_by_path_is_kept(prefix: str) -> None:
    paths = [made(step) for step in steps(prefix, 1)]
    aged(paths)
    reader = ExecutorStep("reader", None, Config({"shards": [f"{paths[1]}/part/*"]}))
    [resolved] = resolve([reader], prefix).steps
    assert garbage_of(prefix, required_by(resolved)) == []
    add_pin(prefix, Pin(made(resolved), "ada", "now"))
    aged([resolved.output_path])
    assert garbage_of(prefix) == [], "the step info names it as the DAG does"


@pytest.mark.slow
def test_step_names_select_required_outputs_or_garbage(prefix: str) -> None:
    paths = [made(step) for value in (1, 2) for step in steps(prefix, value)]
    aged(paths)
    trained = sorted([paths[1], paths[3]])
    assert garbage_of(prefix, RequiredOutputs(names={"data/raw"})) == trained
    assert garbage_of(prefix, names={"train"}) == trained


# ---- outputs outside the prefix


def made_chain(prefix: str, elsewhere: str) -> list[str]:
    """Make old outputs of ``data/raw``, its reader with output ``elsewhere``, and ``train`` that reads that one."""
    raw = ExecutorStep("data/raw", None, Config(versioned(1)))
    middle = ExecutorStep("middle", None, Config(raw), override_output_path=elsewhere)
    paths = [made(step) for step in resolve([ExecutorStep("train", None, Config(middle))], prefix).steps]
    aged(paths)
    return paths


def test_sources_outside_prefix_are_followed_within_roots(prefix: str, tmp_path: Path) -> None:
    raw, middle, train = made_chain(prefix, str(tmp_path / "other/middle"))
    assert garbage_of(prefix) == [raw, train]
    followed = sweep(prefix, RequiredOutputs({train}, roots={str(tmp_path / "other")}))
    assert followed.garbage == () and followed.needed == len([raw, train])

    write_text(f"{middle}/{INFO_FILE}", "{")
    unknown = sweep(prefix, RequiredOutputs({train}))
    assert (unknown.garbage, unknown.unknown) == ((), (middle,))
    assert unknown.unread == (), "a record that may not be read was read"
    invalid = sweep(prefix, RequiredOutputs({train}, roots={middle}))
    assert invalid.garbage == () and [error.file for error in invalid.unread] == [f"{middle}/{INFO_FILE}"]


def test_pin_at_one_prefix_keeps_inputs_at_other_prefix(prefix: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    _, middle, train = made_chain(prefix, f"{other}/middle")
    set_pin(other, Pin(middle, "ada", "2026-03-01T00:00:00+00:00", "for the paper"))
    [here] = find_garbage_below([prefix], RequiredOutputs(), MONTH_S, also_below=[other])
    assert [each.path for each in here.garbage] == [train]
    here, there = find_garbage_below([prefix, other], RequiredOutputs(), MONTH_S)
    assert ([each.path for each in here.garbage], there.garbage) == ([train], ())


@pytest.mark.slow
def test_config_path_below_no_root_is_not_read(prefix: str, tmp_path: Path) -> None:
    far = str(tmp_path / "far/data")
    write_text(f"{far}/{INFO_FILE}", "{")
    [step] = resolve([ExecutorStep("train", None, Config(far))], prefix).steps
    train = made(step)
    assert sweep(prefix, RequiredOutputs({train})).unread == ()
    assert sweep(prefix, RequiredOutputs({train}, roots={far})).unread != ()
