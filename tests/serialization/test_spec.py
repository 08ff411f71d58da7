"""A spec gives the function the same values on the cluster; an unserializable value raises an error."""

from __future__ import annotations

import datetime
import enum
import json
import pathlib
from collections import namedtuple
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.dag_files import HERE, load_dag_file
from tradewind.serialization.errors import FunctionImportError, LazyBuildError, SpecError
from tradewind.serialization.references import CodeFolder, Reference, reference_to
from tradewind.serialization.spec import StepSpec, decode, step_spec
from tradewind.steps import ExecutorStep, TpuSlice, lazy, remote, resolve, versioned

ELSEWHERE = CodeFolder(Path("/nowhere"))


class Color(enum.Enum):
    RED = "red"


class Parts(enum.Flag):
    HEAD = 1
    BODY = 2


class Bits(enum.IntFlag):
    LOW = 1
    HIGH = 4


Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Config:
    value: Any
    other: Any = None


def work(config: Config) -> None: ...


@remote(num_cpus=2)
def remote_work(config: Config) -> None: ...


def spec_of(config: Any, fn: Any = work, **kwargs: Any) -> StepSpec:
    step = ExecutorStep("s", fn, config, **kwargs)
    spec = step_spec(resolve([step], "/p").of(step), HERE)
    return StepSpec.from_json(json.loads(json.dumps(spec.to_json())))


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        1.5,
        "text",
        [1, ["x"]],
        (1, (2,)),
        {"k": {"l": 1}},
        {"$tag": 2, "k": 1},
        {5},
        frozenset({6}),
        Color.RED,
        [Parts.HEAD | Parts.BODY, Parts.BODY, Parts(0), Bits.LOW | Bits.HIGH, Bits(8)],
        Point(1, (2, 3)),
        Config([Config(1)]),
        datetime.date(2026, 11, 20),
        datetime.datetime(2026, 11, 20, 1, 2, 3, tzinfo=datetime.UTC),
        datetime.timedelta(days=1, microseconds=5),
        pathlib.Path("/x/y"),
        b"\x00\xff",
        datetime.timedelta,
        json.dumps,
    ],
)
def test_config_is_decoded_as_it_was(value: Any) -> None:
    assert spec_of(Config(value)).load_config() == Config(value)


def test_versioned_and_lazy_values_are_decoded() -> None:
    assert spec_of(Config(versioned({1: "x", 2: ("y",)}))).load_config().value == {1: "x", 2: ("y",)}
    config = Config(lazy("datetime:timedelta", days=versioned(2)))
    assert spec_of(config).load_config().value == datetime.timedelta(days=2)


def test_function_options_and_resources_arrive() -> None:
    spec = spec_of(Config(1), fn=remote_work, resources=TpuSlice("v4-16"))
    assert spec.load_function() is remote_work.function
    assert spec.ray_task == {"num_cpus": 2}
    assert spec.load_resources() == TpuSlice("v4-16")
    assert spec.fn_name == f"{__name__}.remote_work"
    assert spec_of(Config(1)).ray_task is None


def test_spec_is_read_as_written() -> None:
    spec = replace(spec_of(Config(1), resumable=("a/*",)), roots=("/data",))
    assert StepSpec.from_json(spec.to_json()) == spec == StepSpec.from_json(json.loads(json.dumps(spec.to_json())))


def test_code_travels_only_if_the_step_needs_it() -> None:
    assert spec_of(Config(1)).code_travels
    assert not spec_of(None, fn=json.dumps).code_travels
    modules = spec_of(Config([{"a": (Color.RED, Point(1, 2))}, json.dumps])).modules
    assert HERE.files_of(modules) == ["tests/serialization/test_spec.py"]


@pytest.mark.parametrize(
    ("config", "fn", "message"),
    [
        (None, lambda config: None, "Step 's': .*<lambda>.* cannot be imported on a cluster"),
        (None, None, "Step 's' has no function"),
        (Config(1, [(_ for _ in "x")]), work, r"Step 's': config\.other\.\[0\] is a generator"),
        (Config({versioned(1)}), work, r"config\.value\.\[0\] still holds a VersionedValue"),
    ],
    ids=["lambda", "no function", "generator", "placeholder in a set"],
)
def test_step_that_no_cluster_could_run_is_refused(config: Any, fn: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(config, fn=fn)


def test_failed_import_is_reported_with_advice() -> None:
    with pytest.raises(FunctionImportError, match=r"'f' of module 'no_such' cannot be imported .*ModuleNotFoundError"):
        Reference("no_such", "f").load()
    with pytest.raises(FunctionImportError, match="'nothing' of module 'json'"):
        Reference("json", "nothing").load()


def test_refused_lazy_field_is_named_with_similar_ones() -> None:
    with pytest.raises(LazyBuildError, match=r"lazy\('datetime:timedelta'\) cannot be built from \['moons'\]"):
        decode({"$lazy": "datetime:timedelta", "fields": {"moons": 1}})
    written = {"$lazy": "tradewind.steps.resources:TpuSlice", "fields": {"slice_type": "v4-8", "num_slice": 2}}
    with pytest.raises(LazyBuildError, match=r"argument 'num_slice'; did you mean num_slices\?$"):
        decode(written)


def test_dag_file_definitions_are_named_by_path_in_dags_folder(tmp_path: Path) -> None:
    code, team = CodeFolder(tmp_path), tmp_path / "team"
    team.mkdir()
    assert str(reference_to(load_dag_file(tmp_path, "def f(): ...").f, code)) == "nightly:f"
    assert str(reference_to(load_dag_file(team, "def f(): ...").f, code)) == "team.nightly:f"
    with pytest.raises(SpecError, match=r"my-dag\.py, whose path is no Python module name: rename"):
        reference_to(load_dag_file(tmp_path, "def f(): ...", "my-dag").f, code)


def test_installed_functions_keep_their_names() -> None:
    assert reference_to(json.dumps, ELSEWHERE) == Reference("json", "dumps", travels=False)
