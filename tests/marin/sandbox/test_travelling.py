"""References to a file's definitions: by file and name; a cluster imports the file to find them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marin.checkouts import EXECUTOR, put, run, run_text, write_checkout
from tradewind.marin.sandbox.running import Run
from tradewind.serialization.errors import SpecError
from tradewind.serialization.references import CodeFolder, reference_to
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import ExecutorStep, resolve

OWN = (
    EXECUTOR
    + """
from dataclasses import dataclass, field
from enum import Enum
import jax, ray, heavy
from heavy.optim import Adam, PRESETS
from levanter.no_table import Base

class Kind(Enum):
    GOOD = 1

@dataclass(frozen=True)
class Config:
    kind: Kind
    output_path: str
    optimizer: Adam = field(default_factory=lambda: Adam(1e-3, betas=(0.9, 0.95)).scaled(by=2))
    preset: object = PRESETS["small"]
    module: object = heavy.optim.Adam

    class Inner:
        pass

@Base.register_subclass("own")
@dataclass(frozen=True)
class Own(Base):
    size: int = 3

@ray.remote(num_cpus=2, memory=1024)
def work(config):
    from experiments.tutorials import far
    return {"kind": config.kind.name, "optimizer": config.optimizer, "preset": config.preset, "far": far.FAR}

@jax.jit
def traced(config): ...
"""
)
CALL = "if __name__ == '__main__':\n    executor_main([ExecutorStep('s', {fn}, {config})])\n"


def spec_of(root: Path, found: Run) -> StepSpec:
    (step,) = resolve(found.calls[0].steps, str(root / "out")).steps
    return step_spec(step, CodeFolder(root))


def loaded(root: Path, fn: str, config: str, name: str = "one-two/own") -> StepSpec:
    put(root / "experiments/tutorials/far.py", "FAR = 7\n")
    put(root / f"experiments/{name}.py", OWN + CALL.format(fn=fn, config=config))
    return spec_of(root, run(write_checkout(root), name))


def test_spec_references_use_stable_module_name_of_file(tmp_path: Path) -> None:
    spec = loaded(tmp_path, "work", "Config(Kind.GOOD, this_output_path())")
    assert spec.function == "experiments.one-two.own:work" and spec.code_travels
    assert spec.ray_task == {"num_cpus": 2, "memory": 1024}
    betas = {"betas": {"$tuple": [0.9, 0.95]}}
    adam = {"$call": {"$object": "heavy.optim:Adam"}, "args": [0.001], "fields": betas}
    item = {"$attribute": "__getitem__", "of": {"$object": "heavy.optim:PRESETS"}}
    assert spec.config == {
        "$dataclass": "experiments.one-two.own:Config",
        "fields": {
            "kind": {"$enum": "experiments.one-two.own:Kind", "name": "GOOD"},
            "output_path": spec.output_path,
            "optimizer": {"$call": {"$attribute": "scaled", "of": adam}, "args": [], "fields": {"by": 2}},
            "preset": {"$call": item, "args": ["small"], "fields": {}},
            "module": {"$object": "heavy.optim:Adam"},
        },
    }
    assert StepSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "config", "function", "written"),
    [
        ("traced", "{}", "experiments.own:traced", {}),
        ("jax.tree.map", "{}", "jax:tree.map", {}),
        (
            "heavy.run.main",
            "{'a': Own(size=4)}",
            "heavy:run.main",
            {"a": {"$call": {"$object": "experiments.own:Own"}}},
        ),
        ("work", "{'a': Config.Inner}", "experiments.own:work", {"a": {"$object": "experiments.own:Config.Inner"}}),
    ],
)
def test_decorated_or_library_objects_are_referenced_by_name(
    tmp_path: Path, fn: str, config: str, function: str, written: dict[str, dict[str, object]]
) -> None:
    spec = loaded(tmp_path, fn, config, "own")
    assert spec.function == function
    assert {name: {key: spec.config[name][key] for key in value} for name, value in written.items()} == written


def test_checkout_library_reference_omits_source_folder(tmp_path: Path) -> None:
    (call,) = run(write_checkout(tmp_path), "tutorials/train_tiny").calls
    step = resolve(call.steps, str(tmp_path / "out")).steps[0]
    spec = step_spec(step, CodeFolder(tmp_path))
    assert spec.function == "marin.processing.tokens:tokenize" and spec.code_travels
    assert spec.config["$dataclass"] == "marin.processing.tokens:TokenizeConfig"
    assert spec.ray_task == {"num_cpus": 0.1, "memory": 1024, "runtime_env": {"env_vars": {"A": "b"}}}


@pytest.mark.slow
def test_functions_of_two_checkouts_travel_each_from_its_own(tmp_path: Path) -> None:
    text = "def mine(config): ...\nexecutor_main([ExecutorStep('s', mine, None)])\n"
    for root, found in [(root, run_text(root, text)) for root in (tmp_path / "one", tmp_path / "two")]:
        (step,) = found.calls[0].steps
        assert isinstance(step, ExecutorStep) and reference_to(step.fn, CodeFolder(root)).travels


@pytest.mark.slow
@pytest.mark.parametrize("fn", ["lambda config: None", "Adam(1).step", "Adam(1)"])
def test_function_without_name_is_refused(tmp_path: Path, fn: str) -> None:
    with pytest.raises(SpecError, match="cannot be imported on a cluster"):
        loaded(tmp_path, fn, "{}", "own")


CLUSTER = """
import json, sys
from tradewind.serialization.spec import StepSpec
spec = StepSpec.from_json(json.loads(sys.argv[1]))
function = spec.load_function()
print(json.dumps(function(spec.load_config())))
"""


LIBRARIES = {
    "heavy/__init__.py": "",
    "heavy/optim.py": """
        class Adam:
            def __init__(self, rate, betas):
                self.rate, self.betas = rate, betas
            def scaled(self, by):
                return [self.rate * by, *self.betas]
        PRESETS = {"small": "tiny"}
        """,
    "jax.py": "jit = lambda function: function\n",
    "ray.py": "remote = lambda **options: lambda function: function\n",
    "levanter/__init__.py": "",
    "levanter/no_table.py": """
        class Base:
            register_subclass = classmethod(lambda cls, name: lambda kind: kind)
        """,
    "marin/execution/executor.py": """
        ExecutorStep = executor_main = output_path_of = this_output_path = versioned = None
        """,
}


@pytest.mark.slow
def test_cluster_imports_file_with_real_libraries_without_main(tmp_path: Path) -> None:
    root, libraries = tmp_path / "checkout", tmp_path / "libraries"
    for file, text in LIBRARIES.items():
        put(libraries / file, text)
    spec = loaded(root, "work", "Config(Kind.GOOD, this_output_path())")
    (root / "src").rename(root / "unused")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(libraries)])}
    command = [sys.executable, "-c", CLUSTER, json.dumps(spec.to_json())]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = {"kind": "GOOD", "optimizer": [0.002, 0.9, 0.95], "preset": "tiny", "far": 7}
    assert json.loads(done.stdout.splitlines()[-1]) == result
