"""Tasks resolve mirrored paths before a claim, and only to paths inside a prefix."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.runtime.dag_files import HERE
from tradewind.serialization.errors import SpecError
from tradewind.serialization.mirrors import locate_mirrors
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import (
    ExecutorStep,
    InputName,
    ResolvedStep,
    StepConfigError,
    mirrored,
    output_path_of,
    resolve,
    this_output_path,
    versioned,
)
from tradewind.steps.placeholders import Mirror

US, EU, ASIA = "gs://us/runs", "gs://eu/runs", "gs://asia/runs"


@dataclass(frozen=True)
class Config:
    value: Any
    output_path: Any = None


def work(config: Config) -> None: ...


def resolved(value: Any) -> ResolvedStep:
    step = ExecutorStep("train", work, Config(value, this_output_path()))
    return resolve([step], US).of(step)


def spec_of(value: Any, *prefixes: str) -> StepSpec:
    spec = step_spec(resolved(value), HERE, prefixes)
    return StepSpec.from_json(json.loads(json.dumps(spec.to_json())))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (mirrored("data/raw"), f"{US}/data/raw"),
        (mirrored(versioned("data/raw/")), f"{US}/data/raw"),
        (mirrored("mirror://data/raw"), f"{US}/data/raw"),
        (mirrored(InputName.hardcoded("data/raw")), f"{US}/data/raw"),
        (mirrored(f"{EU}/data/raw"), f"{US}/data/raw"),
        ({"deep": [mirrored("data/raw")]}, {"deep": [f"{US}/data/raw"]}),
    ],
)
def test_function_gets_the_path_in_the_prefix_of_its_run(value: Any, path: Any) -> None:
    spec = spec_of(value, US, EU, ASIA)
    assert spec.load_config().value == path
    (mirror,) = spec.mirrors
    assert (mirror.name, mirror.sources) == ("data/raw", (EU, ASIA))


def test_path_of_a_region_is_copied_from_there_first() -> None:
    (mirror,) = locate_mirrors([Mirror("config.value", f"{ASIA}/data", 10, US)], (EU, ASIA))
    assert mirror.sources == (ASIA, EU)


def test_output_of_same_run_is_read_in_place_and_is_dependency() -> None:
    raw = ExecutorStep("raw", None, None)
    step = resolved([mirrored(output_path_of(raw, "train")), mirrored(raw)])
    assert [each.name for each in step.dependencies] == ["raw", "raw"]
    spec = step_spec(step, HERE, (EU,))
    path = step.dependencies[0].output_path
    assert spec.load_config().value == [f"{path}/train", path]
    assert all(mirror.is_made_here for mirror in spec.mirrors)


def test_output_in_another_region_is_copied_from_there() -> None:
    raw = ExecutorStep("raw", None, None, override_output_path=f"{EU}/raw")
    spec = spec_of(mirrored(raw), ASIA, EU)
    assert spec.load_config().value == f"{US}/raw"
    assert (spec.mirrors[0].sources, spec.mirrors[0].is_made_here) == ((EU, ASIA), False)
    other = ExecutorStep("raw", None, None, override_output_path="gs://unknown/raw")
    with pytest.raises(SpecError, match="is below none of the known prefixes"):
        spec_of(mirrored(other), EU)


def test_path_in_several_fields_has_the_largest_budget() -> None:
    fields = [mirrored("data", budget_gb=1), mirrored("data", budget_gb=3), mirrored("data", budget_gb=2)]
    (mirror,) = spec_of(fields, EU).mirrors
    assert (mirror.budget_gb, mirror.field) == (3, "config.value.[0]")
    assert spec_of([*fields, mirrored("data", budget_gb=None)], EU).mirrors[0].budget_gb is None


@pytest.mark.parametrize(
    "path",
    [
        "../secret", "data/../../secret", "data/./raw", "data//raw", "", "/", f"{EU}/../us/x", f"{EU}", f"{US}/",
        ".tradewind/pins", "data/.attempts/1", "gs://unknown/data", "/etc/passwd", "file:///etc/passwd",
        "model-abcdef/.executor_status", "model-abcdef/.executor_status.lock/", "model-abcdef//.executor_info",
        f"{EU}/model-abcdef/.executor_info", ".executor_status", "model-abcdef/.manifest.json", "m/.executor_x/y",
        f"m/.executor_status.{'0' * 32}", "/m/./.executor_status", "mirror://m/.executor_status",
        "https://host/data", "data\0", "a::b", "gs://user:s3cret@eu/runs/x", "mirror://gs://unknown/x",
    ],
)  # fmt: skip
def test_escaping_path_is_refused_by_field_before_claim(path: str) -> None:
    with pytest.raises(SpecError, match=r"^Step 'train': config\.value") as refused:
        spec_of(mirrored(path), EU)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("value", [["a", "b"], None, 3, Config("a")])
def test_only_a_path_can_be_mirrored(value: Any) -> None:
    with pytest.raises(StepConfigError, match=r"config\.value: mirrored\(\) takes one path"):
        resolved(mirrored(value))


def test_spec_with_invalid_mirror_is_refused() -> None:
    fields = spec_of(mirrored("data"), EU).to_json()
    mirror = fields["mirrors"][0]
    for wrong in ({}, mirror | {"budget_gb": "much"}, mirror | {"sources": [1]}):
        with pytest.raises(SpecError, match="mirrored paths in an attempt's file cannot be read"):
            StepSpec.from_json({**fields, "mirrors": [wrong]})
    del fields["mirrors"]
    assert StepSpec.from_json(fields).mirrors == ()
