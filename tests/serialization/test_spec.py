"""A spec gives the function the same values on the cluster; an unserializable value raises an error."""

from __future__ import annotations

import datetime
import enum
import json
import pathlib
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tradewind.serialization.errors import FunctionImportError, LazyBuildError, SpecError
from tradewind.serialization.references import CodeFolder, Reference, reference_to
from tradewind.serialization.spec import StepSpec, decode, step_spec
from tradewind.steps import ExecutorStep, TpuSlice, lazy, remote, resolve, versioned

HERE = CodeFolder(Path(__file__).parents[2])
ELSEWHERE = CodeFolder(Path("/nowhere"))


class Color(enum.Enum):
    RED = "red"


Point = namedtuple("Point", "x y")


@dataclass(frozen=True)
class Config:
    value: Any
    other: Any = None


def work(config: Config) -> None: ...


@remote(num_cpus=2)
def remote_work(config: Config) -> None: ...


def written(config: Any, fn: Any = work, code: CodeFolder = HERE, **kwargs: Any) -> StepSpec:
    step = ExecutorStep("s", fn, config, **kwargs)
    spec = step_spec(resolve([step], "/p").of(step), code)
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
def test_a_config_arrives_as_it_was(value: Any) -> None:
    assert written(Config(value)).load_config() == Config(value)


def test_keys_that_are_no_strings_arrive_under_versioned() -> None:
    assert written(Config(versioned({1: "x", 2: ("y",)}))).load_config().value == {1: "x", 2: ("y",)}


def test_a_lazy_object_is_built_on_arrival() -> None:
    config = Config(lazy("datetime:timedelta", days=versioned(2)))
    assert written(config).load_config().value == datetime.timedelta(days=2)


def test_function_options_and_resources_arrive() -> None:
    spec = written(Config(1), fn=remote_work, resources=TpuSlice("v4-16"))
    assert spec.load_function() is remote_work.function
    assert spec.ray_task == {"num_cpus": 2}
    assert spec.load_resources() == TpuSlice("v4-16")
    assert spec.fn_name == f"{__name__}.remote_work"
    assert written(Config(1)).ray_task is None


def test_a_spec_is_read_back_as_it_was_before_it_was_stored() -> None:
    spec = replace(written(Config(1), resumable=("a/*",)), roots=("/data",))
    assert StepSpec.from_json(spec.to_json()) == spec == StepSpec.from_json(json.loads(json.dumps(spec.to_json())))


def test_code_travels_only_if_the_step_needs_it() -> None:
    assert written(Config(1)).code_travels
    assert not written(None, fn=json.dumps).code_travels


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda config: None, "Step 's': .*<lambda>.* cannot be imported on a cluster"),
        (None, "Step 's' has no function"),
    ],
)
def test_a_function_that_no_cluster_could_import_is_refused(fn: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        written(Config(1), fn=fn)


def test_a_value_without_a_written_form_is_refused_with_its_path() -> None:
    with pytest.raises(SpecError, match=r"Step 's': config\.other\.\[0\] is a generator"):
        written(Config(1, [(_ for _ in "x")]))


def test_a_placeholder_inside_a_set_is_refused() -> None:
    with pytest.raises(SpecError, match=r"config\.value\.\[0\] still holds a VersionedValue"):
        written(Config({versioned(1)}))


def test_an_import_that_fails_says_what_to_do() -> None:
    with pytest.raises(FunctionImportError, match=r"'f' of module 'no_such' cannot be imported .*ModuleNotFoundError"):
        Reference("no_such", "f").load()
    with pytest.raises(FunctionImportError, match="'nothing' of module 'json'"):
        Reference("json", "nothing").load()


def test_a_lazy_object_that_cannot_be_built_says_why() -> None:
    with pytest.raises(LazyBuildError, match=r"lazy\('datetime:timedelta'\) cannot be built from \['moons'\]"):
        decode({"$lazy": "datetime:timedelta", "fields": {"moons": 1}})


def test_unknown_field_error_suggests_intended_field() -> None:
    written = {"$lazy": "tradewind.steps.resources:TpuSlice", "fields": {"slice_type": "v4-8", "num_slice": 2}}
    with pytest.raises(LazyBuildError, match=r"argument 'num_slice'; did you mean num_slices\?$"):
        decode(written)


# ---- names that a DAG file defines

DEFINES = """
import importlib.util, sys
from pathlib import Path
from tradewind.serialization.references import CodeFolder, reference_to
spec = importlib.util.spec_from_file_location("unusual_prefix_0123_" + Path(sys.argv[2]).stem, sys.argv[2])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
try:
    print(reference_to(module.f, CodeFolder(Path(sys.argv[1]))))
except ValueError as error:
    print(error)
"""


def reference_in(folder: Path, file: str) -> str:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("def f(): ...\n")
    command = [sys.executable, "-c", DEFINES, str(folder), str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
def test_dag_file_definitions_are_named_by_path_in_dags_folder(tmp_path: Path) -> None:
    assert reference_in(tmp_path, "nightly.py") == "nightly:f"
    assert reference_in(tmp_path, "team/nightly.py") == "team.nightly:f"
    assert "my-dag.py, whose path is no Python module name: rename" in reference_in(tmp_path, "my-dag.py")


def test_installed_functions_keep_their_names() -> None:
    assert reference_to(json.dumps, ELSEWHERE) == Reference("json", "dumps", travels=False)
