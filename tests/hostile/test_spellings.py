"""A path with two spellings: garbage collection protects the output under both."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.plans.garbage.outputs import MONTH_S, Config, aged, made, steps
from tests.records.test_found_files import begin, work
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage_below
from tradewind.plans.garbage.withdrawal import canonical_path, paths_in
from tradewind.records.discovery import find_outputs
from tradewind.records.pins import Pin, add_pin
from tradewind.steps import ExecutorStep, ResolvedStep, resolve, versioned

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


def required_by(*steps: ResolvedStep) -> RequiredOutputs:
    required = RequiredOutputs()
    for step in steps:
        required.add_step(step)
    return required


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
