"""Imports go one way, and parsing a DAG file stays light."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tradewind

PACKAGE = Path(tradewind.__file__).parent
REPOSITORY = Path(__file__).parents[1]

LOWER_LAYERS = {
    "steps": set(),
    "storage": set(),
    "records": {"steps", "storage"},
    "plans": {"steps", "storage", "records"},
    "ray_jobs": set(),
    "cloud_tpu": {"storage"},
    "datasets": {"storage"},
    "recipes": {"datasets", "steps", "storage", "plans", "cloud_tpu", "runtime"},
    "runtime": {"steps", "storage", "records", "cloud_tpu"},
    "rehearsal": {"storage", "cloud_tpu", "runtime"},
}
"""What each layer may import of ours besides itself; those not listed hold Airflow glue or the command line."""

HEAVY = {"aiohttp", "ray", "jax", "levanter", "google", "tokenizers", "transformers", "matplotlib"}


def imports_of(file: Path, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("layer", sorted(LOWER_LAYERS))
def test_a_layer_imports_only_from_below(layer: str) -> None:
    for file in (PACKAGE / layer).rglob("*.py"):
        for name in imports_of(file):
            top, _, rest = name.partition(".")
            if top == "tradewind" and rest:
                assert rest.split(".")[0] in LOWER_LAYERS[layer] | {layer}, f"{file.name} of {layer} imports {name}"
            assert top != "airflow", f"{file.name} of {layer} imports {name}"


def test_what_the_wheel_packs_knows_nothing_of_the_repository_around_it() -> None:
    packed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    around = {"benchmarks", "dags", "demo", "scripts", "tests"}
    pipelines = {file.stem for file in (REPOSITORY / "dags").glob("*.py")} | {"code_lm"}
    assert packed["packages"] == ["operators/tradewind", "plugins/tradewind_ui"]
    for file in (file for folder in packed["packages"] for file in (REPOSITORY / folder).rglob("*.py")):
        assert not {name.split(".")[0] for name in imports_of(file)} & around, f"{file} imports what is not packed"
        assert not [name for name in pipelines if name in file.read_text()], f"{file} names a pipeline of this checkout"


def test_steps_need_only_the_standard_library() -> None:
    for file in (PACKAGE / "steps").rglob("*.py"):
        for name in imports_of(file):
            assert name.split(".")[0] in sys.stdlib_module_names | {"tradewind"}, f"{file.name} imports {name}"


# Modules without a file are namespaces, such as ``google``: some packages put them into every process of Python.
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag(sys.argv[1], collect_dags=True)
print("RESULT" + json.dumps({
    "errors": bag.import_errors,
    "modules": sorted(name for name, module in sys.modules.items() if getattr(module, "__file__", None)),
    "dags": {dag_id: DagSerialization.to_dict(dag) for dag_id, dag in bag.dags.items()},
}, sort_keys=True, default=str))
"""


def parse_dags(tmp_path: Path, hash_seed: str) -> dict:
    env = dict(os.environ, AIRFLOW_HOME=str(tmp_path), PYTHONHASHSEED=hash_seed, AIRFLOW__CORE__LOAD_EXAMPLES="False")
    dags = str(REPOSITORY / "dags")
    done = subprocess.run([sys.executable, "-c", PARSE, dags], env=env, capture_output=True, text=True, check=False)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert result, done.stderr
    return dict(json.loads(result[0].removeprefix("RESULT")))


def test_parsing_every_dag_file_loads_nothing_heavy_and_gives_the_same_dag_each_time(tmp_path: Path) -> None:
    first, second = (parse_dags(tmp_path, seed) for seed in ("1", "4242"))
    assert first["errors"] == {}
    assert {"hello_world", "nightly_code_lm"} <= first["dags"].keys()
    heavy = {name for name in first["modules"] if name.split(".")[0] in HEAVY}
    assert heavy == set()
    assert first["dags"] == second["dags"]


def test_the_package_imports_without_airflow() -> None:
    code = (
        "import sys; sys.modules['airflow'] = None\n"
        "import tradewind, tradewind.runtime.run_step, tradewind.recipes.train_lm, tradewind.datasets.clean\n"
        "import os; os.environ['TRADEWIND_STEP'] = 'x'\n"
        f"sys.path.insert(0, {str(REPOSITORY / 'dags')!r})\n"
        "import hello_world, nightly_code_lm\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
