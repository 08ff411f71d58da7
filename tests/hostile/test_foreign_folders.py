"""Attempts, adoptions and garbage collection never take the files of others, and no two steps share an output."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import Outcome, attack_all, expect_success, named
from tests.plans.garbage.outputs import MONTH_S, Config, aged, made, required_by, steps
from tests.records.test_adoption import adoption_of
from tests.records.test_found_files import begin, end, work
from tests.support.claims import renewing
from tradewind import experiment_dag
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage_below
from tradewind.plans.garbage.withdrawal import canonical_path, paths_in
from tradewind.plans.output_locations import ExperimentError, check_output_places
from tradewind.records.adoption import NothingToAdoptError, adopt
from tradewind.records.discovery import OccupiedFolderError, find_outputs
from tradewind.records.pins import Pin, add_pin
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned
from tradewind.storage import Roots

Plant = Callable[[Path, Path], None]


def file(name: str) -> Plant:
    def plant(output: Path, outside: Path) -> None:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("precious")

    return plant


def link(name: str, target: str) -> Plant:
    def plant(output: Path, outside: Path) -> None:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).symlink_to(target.format(outside=outside))

    return plant


FOREIGN_FILES = [
    "precious", "deep/er/precious", ".hidden", ".manifest", "[a]*?", "a::b", "a\nb", "a\\b", " ", "-rf", "~", "ä",
    os.fsdecode(b"not-utf8-\xff"), "x" * 255, "/".join(["d"] * 200), "experiments/table.json",
    "checkpoints/step-1/weights", ".artifact.json",
]  # fmt: skip
LINKS = [
    link("to-a-file", "{outside}/treasure"),
    link("to-a-folder", "{outside}/folder"),
    link("deep/to-a-folder", "{outside}"),
    link("to-nothing", "{outside}/nothing"),
    link("to-itself", "to-itself"),
    link("up", ".."),
    link("to-the-root", "/"),
]


def step_of(sandbox: Path) -> tuple[ResolvedStep, Path]:
    made = ExecutorStep("made", work, {}, override_output_path="mine")
    step = resolve([made], str(sandbox / "own/store")).of(made)
    return step, Path(step.output_path)


def entries(folder: Path) -> dict[str, str]:
    """Return all entries of a folder except records and the leftovers of attempts."""
    contents = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not name.startswith((".executor_", ".attempts", "half")) and (path.is_symlink() or path.is_file()):
            contents[name] = os.readlink(path) if path.is_symlink() else path.read_text()
    return contents


def fail_three_times(step: ResolvedStep) -> list[str]:
    """Run three attempts that write files and fail; return their leftovers when a fourth has begun."""
    for number in range(3):
        claim = begin(step)
        (Path(step.output_path) / f"half-{number}").write_text("half")
        end(step, claim)
    begin(step)
    return sorted(path.name for path in Path(step.output_path).glob("half*"))


def attack_planted(
    plants: Iterable[Plant], call: Callable[[ResolvedStep], Any], sandbox: Path, judge: Callable[[Outcome], None]
) -> None:
    """Check that the call changes none of the entries that each plant leaves in the step's output."""
    step, output = step_of(sandbox)
    numbered = {str(number): plant for number, plant in enumerate(plants)}
    before: dict[str, str] = {}

    def prepare(name: str) -> None:
        numbered[name](output, sandbox / "outside")
        before.clear()
        before.update(entries(output.resolve()))

    def judge_with_entries(outcome: Outcome) -> None:
        judge(outcome)
        after = entries(output.resolve())
        assert after == before, f"{after}, not {before}"

    attack_all(dict.fromkeys(numbered, partial(call, step)), sandbox, judge_with_entries, prepare=prepare)


def test_failed_attempts_remove_only_their_own_leftovers(sandbox: Path) -> None:
    plants = [*map(file, FOREIGN_FILES), *LINKS]
    attack_planted(plants, fail_three_times, sandbox, lambda outcome: outcome.must_be_accepted("[]"))


def test_link_left_by_attempt_is_removed_and_its_target_stays(sandbox: Path) -> None:
    step, output = step_of(sandbox)

    def leave(plant: Plant) -> list[str]:
        claim = begin(step)
        plant(output, sandbox / "outside")
        end(step, claim)
        begin(step)
        return sorted(entries(output))

    expect_success(named(LINKS, leave), sandbox, "[]", prepare=lambda _: output.mkdir(parents=True))


def test_output_linked_to_foreign_folder_does_not_empty_it(sandbox: Path) -> None:
    def linked_to(target: str) -> Plant:
        def plant(output: Path, outside: Path) -> None:
            output.parent.mkdir(parents=True)
            output.symlink_to(target)

        return plant

    targets = [f"{sandbox}/outside", f"{sandbox}/outside/folder", "../../outside", "../../outside/folder"]
    attack_planted(map(linked_to, targets), fail_three_times, sandbox, lambda outcome: None)


def test_oddly_named_folder_does_not_hide_other_outputs(sandbox: Path) -> None:
    own = sandbox / "own"
    odd = ("a::b", "::", "reference::x", "x\ny", os.fsdecode(b"\xff"), "*", "[a]", "-rf", "~", " ")
    names = {ascii(name): name for name in odd}

    def prepare(name: str) -> None:
        for folder in (names[name], f"{names[name]}/deep", "fine"):
            file(f"{folder}/.executor_info")(own, sandbox)

    cases = dict.fromkeys(names, lambda: "fine" in [Path(path).name for path in find_outputs(str(own))])
    expect_success(cases, sandbox, "True", prepare=prepare)


# ---- adoption


@pytest.fixture
def step(tmp_path: Path) -> ResolvedStep:
    [resolved] = resolve([ExecutorStep("train", work, {})], str(tmp_path / "store")).steps
    return resolved


@pytest.mark.parametrize(
    "source",
    ["{0}", "file://{0}", "local://{0}//", "{0}/.", "{1}/link", "{0}/checkpoints", "{1}/link/checkpoints", "{1}/store"],
)
def test_adoption_from_own_output_removes_no_leftovers(step: ResolvedStep, source: str, tmp_path: Path) -> None:
    leftover = Path(step.output_path, "checkpoints", "model")
    claim = begin(step)
    leftover.parent.mkdir()
    leftover.write_text("weights")
    end(step, claim)
    (tmp_path / "link").symlink_to(step.output_path)
    with pytest.raises(NothingToAdoptError):
        adopt(adoption_of(step, source.format(step.output_path, tmp_path), copies=True), renewing)
    assert leftover.read_text() == "weights"


def test_copying_adoption_replaces_no_files_and_can_be_repeated(step: ResolvedStep, tmp_path: Path) -> None:
    output, source = Path(step.output_path), tmp_path / "source"
    for folder in (output, source):
        (folder / "part").mkdir(parents=True)
        (folder / "part" / "model").write_text(folder.name)
    with pytest.raises(OccupiedFolderError, match=r"part/model.*Nothing was claimed"):
        adopt(adoption_of(step, str(source), copies=True), renewing)
    assert [path.name for path in output.rglob("*")] == ["part", "model"]
    assert (output / "part" / "model").read_text() == output.name
    shutil.rmtree(output)
    adopt(adoption_of(step, str(source), copies=True), renewing)
    assert (output / "part" / "model").read_text() == "source"


# ---- steps with one output


def two(first: str, second: str, *, reads: bool = False) -> list[ExecutorStep]:
    outer = ExecutorStep("outer", work, {"version": 1}, override_output_path=first)
    config = {"reads": outer} if reads else {"version": 2}
    return [outer, ExecutorStep("inner", work, config, override_output_path=second)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x", "./x"), ("a/b", "a//b"), ("a/b", "a/./b/."), ("/data/x", "file:///data/x"), ("gs://b/x", "gcs://b/x"),
        ("s3://b/x/", "s3a://b//x"), ("x", "x/y"), ("x", "x/deep/er"), ("x/y", "./x"), ("gs://b/x", "gcs://b/x/y"),
    ],
)  # fmt: skip
def test_steps_with_same_or_nested_output_are_an_import_error(first: str, second: str) -> None:
    with pytest.raises(ExperimentError, match=r"'outer'.*'inner'|'inner'.*'outer'"):
        experiment_dag("both", two(first, second))


def test_plan_detects_link_between_two_outputs(tmp_path: Path) -> None:
    (tmp_path / "store" / "x").mkdir(parents=True)
    (tmp_path / "store" / "link").symlink_to("x")
    for second in ("link", "link/y"):
        steps = resolve(two("x", second), str(tmp_path / "store")).steps
        with pytest.raises(ExperimentError, match="'outer'"):
            check_output_places(steps, str(tmp_path / "store"), Roots)


def test_sibling_outputs_and_output_within_its_input_are_valid() -> None:
    experiment_dag("neighbours", two("x", "xy/x"))
    experiment_dag("within", two("x", "x/y", reads=True))
    experiment_dag("long", two("x" * 300, "y"))  # valid in a bucket, and the DAG file does not know the prefix


# ---- garbage collection, under every spelling of a path


SPELLINGS = [
    "file://{}", "local://{}", "{}/", "{}//", "/{}", "{}/.", "{}/../store", "{}-link", "file://{}-link",
]  # fmt: skip


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    (tmp_path / "store-link").symlink_to("store")
    return str(tmp_path / "store")


def garbage(
    prefixes: Collection[str], required: RequiredOutputs | None = None, also_below: Collection[str] = ()
) -> list[str]:
    sweeps = find_garbage_below(prefixes, required or RequiredOutputs(), MONTH_S, also_below=also_below)
    return [each.path for sweep in sweeps for each in sweep.garbage]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_required_outputs_survive_under_other_prefix_spelling(prefix: str, spelling: str) -> None:
    raw, train = steps(prefix, 1)
    aged([made(raw), made(train)])
    other = spelling.format(prefix)
    assert len(garbage([prefix, other])) == 2, "each output is named once"
    assert not garbage([prefix, other], required_by(train))
    assert not garbage([other, prefix], required_by(train))
    assert not garbage([other], required_by(train), [prefix])
    assert not garbage([prefix], required_by(*steps(other, 1)))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_pin_protects_output_and_inputs_across_spellings(prefix: str, spelling: str) -> None:
    other = spelling.format(prefix)
    raw, train = steps(other, 1)
    made(raw)
    made(train)
    aged(find_outputs(prefix))
    add_pin(other, Pin(train.output_path, "ada", "now"))
    assert not garbage([prefix])
    assert not garbage([other])


def test_gc_keeps_link_target_and_output_holding_the_link(prefix: str) -> None:
    raw, train = steps(prefix, 1)
    paths = [made(raw), made(train)]
    (Path(paths[1]) / "current").symlink_to(paths[0])
    aged(paths)
    assert not garbage([prefix], RequiredOutputs(paths={f"{paths[1]}/current/part"}))


@pytest.mark.parametrize(
    "text", ["zip://part/*.json::file://{}/part", "simplecache::{}/part/model", "file://{}/part", "{}//part/"]
)
def test_gc_keeps_output_named_in_chained_path_or_config_key(prefix: str, text: str) -> None:
    [raw, train] = steps(prefix, 1)
    paths = [made(raw), made(train)]
    aged(paths)
    for value in (text, {text: 0.5}, [{"mixture": {text: [1]}}]):
        named = set(paths_in(json.loads(json.dumps(value).replace("{}", raw.output_path))))
        assert garbage([prefix], RequiredOutputs(paths=named)) == [train.output_path]


@pytest.mark.parametrize(
    "path", ["\0", "/a\0b", "\ud800", "/" + "x" * 5000, "a::b", "hf://d/x", "gs://", "s3://@/", "//"]
)
def test_canonical_path_is_idempotent_for_any_text(path: str) -> None:
    assert canonical_path(canonical_path(path)) == canonical_path(path)


@pytest.mark.parametrize("path", ["outer/inner", ".hidden/inner", "experiments/inner", "experiments/a/inner"])
def test_gc_keeps_inputs_of_nested_output_behind_pinned_output(prefix: str, path: str) -> None:
    """The search skips outputs and hidden folders."""
    raw = ExecutorStep("raw", None, Config(versioned(1)))
    inner = ExecutorStep("inner", None, Config(raw), override_output_path=path)
    outer = ExecutorStep("outer", None, Config(1), override_output_path="outer")
    top = ExecutorStep("top", None, Config(inner))
    experiment = resolve([top, outer], prefix)
    for step in (raw, outer, inner, top):
        made(experiment.of(step))
    aged(one.output_path for one in experiment.steps)
    add_pin(prefix, Pin(experiment.of(top).output_path, "ada", "now"))
    assert not {experiment.of(raw).output_path, experiment.of(inner).output_path}.intersection(garbage([prefix]))


def test_gc_keeps_inputs_of_attempt_in_experiments_folder(prefix: str) -> None:
    raw = ExecutorStep("raw", None, Config(versioned(1)))
    reader = resolve([ExecutorStep("experiments/first", work, Config(raw))], prefix).steps[-1]
    path = made(*reader.dependencies)
    begin(reader)
    aged([path])
    assert not garbage([prefix])
