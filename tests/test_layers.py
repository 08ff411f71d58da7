"""Imports follow the order of the layers, and parsing a DAG file loads no heavy modules."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tradewind
from tradewind.provider_info import get_provider_info

PACKAGE = Path(tradewind.__file__).parent
REPOSITORY = Path(__file__).parents[1]

LAYERS: dict[str, set[str]] = {
    "_version": set(),
    "text": set(),
    "shared_reads": {"text"},
    "timeouts": set(),
    "machine": set(),
    "steps": {"text"},
    "storage": {"timeouts"},
    "cloud_tpu": {"text", "machine", "storage"},
    "ray_jobs": {"text", "timeouts", "machine", "storage", "cloud_tpu"},
    "records": {"text", "machine", "steps", "storage"},
    "serialization": {"_version", "steps", "storage", "ray_jobs", "records"},
    "plans": {"text", "steps", "storage", "records"},
    "attempts": {"machine", "steps", "storage", "ray_jobs", "records", "serialization", "plans"},
    "datasets": {"text", "steps", "storage", "records", "serialization", "plans", "attempts"},
    "runtime": {"text", "machine", "steps", "storage", "cloud_tpu", "records", "serialization", "attempts"},
    "fleet": {"text", "shared_reads", "timeouts", "machine", "storage", "cloud_tpu", "ray_jobs", "records", "runtime"},
    "recipes": {"_version", "text", "steps", "storage", "cloud_tpu", "datasets", "records", "plans", "runtime"},
    "serving": {
        "_version", "text", "timeouts", "machine", "steps", "storage", "ray_jobs", "cloud_tpu", "datasets", "records",
        "serialization", "plans", "attempts", "runtime", "recipes",
    },
    "evaluation": {
        "_version", "text", "timeouts", "machine", "steps", "storage", "cloud_tpu", "datasets", "records", "plans",
        "runtime", "recipes", "serving",
    },
    "browsing": {"text", "steps", "storage", "datasets", "records", "recipes", "evaluation"},
    "rehearsal": {"text", "timeouts", "storage", "cloud_tpu", "records", "runtime"},
    "links": {"ray_jobs"},
    "deployment": {"steps", "storage", "ray_jobs", "cloud_tpu", "fleet", "plans", "serialization"},
    "triggers": {"timeouts", "storage", "ray_jobs", "cloud_tpu", "records", "attempts", "deployment"},
    "tasks": {
        "_version", "text", "steps", "storage", "ray_jobs", "cloud_tpu", "records", "serialization", "plans",
        "attempts", "runtime", "links", "deployment", "triggers",
    },
    "hooks": {"steps", "ray_jobs", "records", "serialization", "attempts", "deployment", "triggers", "tasks"},
    "operators": {
        "text", "timeouts", "steps", "ray_jobs", "cloud_tpu", "fleet", "records", "serialization", "plans", "attempts",
        "runtime", "recipes", "serving", "evaluation", "links", "deployment", "triggers", "tasks",
    },
    "sensors": {"ray_jobs", "cloud_tpu", "deployment", "triggers", "tasks"},
    "decorators": {"operators"},
    "local": {
        "text", "steps", "storage", "ray_jobs", "records", "serialization", "plans", "attempts", "runtime", "tasks",
    },
    "experiments": {"steps", "serialization", "plans", "tasks", "operators", "local"},
    "marin": {
        "text", "machine", "steps", "storage", "datasets", "serialization", "recipes", "serving", "evaluation", "tasks",
        "experiments",
    },
    "cli": {
        "text", "timeouts", "machine", "steps", "storage", "ray_jobs", "cloud_tpu", "fleet", "datasets", "records",
        "serialization", "plans", "attempts", "runtime", "recipes", "serving", "evaluation", "browsing", "rehearsal",
        "deployment", "tasks", "operators", "marin",
    },
    "provider_info": {"_version"},
    "": {"_version", "steps", "experiments"},
}  # fmt: skip
"""Package → the packages that it may import besides itself; each entry imports only earlier ones."""

WITHOUT_AIRFLOW = {
    "text", "shared_reads", "timeouts", "machine", "steps", "storage", "ray_jobs", "cloud_tpu", "fleet", "datasets",
    "records", "serialization", "plans", "attempts", "runtime", "recipes", "serving", "evaluation", "browsing",
    "rehearsal",
}  # fmt: skip
"""Packages that clusters import, or that must be importable without Airflow."""

AIRFLOW_SERVER = "rehearsal/local/airflow_server.py"
"""Program that a local Airflow runs and no module imports."""
HEAVY = {"aiohttp", "ray", "jax", "levanter", "google", "tokenizers", "transformers", "matplotlib"}


def imports_of(file: Path, root: Path = PACKAGE.parent) -> Iterator[str]:
    """Yield every module that a file imports, absolute or relative, at any place in the file."""
    folder = file.relative_to(root).parent.parts if file.is_relative_to(root) else ()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            for alias in node.names:
                path = root.joinpath(*module.split("."), alias.name)
                if path.is_dir() or path.with_suffix(".py").is_file():
                    yield f"{module}.{alias.name}"


def package_of(file: Path) -> str:
    """Return the package of the file, or the name of a top-level module."""
    first = file.relative_to(PACKAGE).with_suffix("").parts[0]
    return "" if first == "__init__" else first


def test_every_package_has_a_layer_and_layers_have_no_cycle() -> None:
    above: set[str] = set()
    for package, may_import in LAYERS.items():
        assert may_import <= above, f"{package} may import a package of a later layer"
        above.add(package)
    assert {package_of(file) for file in PACKAGE.rglob("*.py")} == set(LAYERS)


@pytest.fixture(scope="module")
def imports() -> dict[Path, list[str]]:
    """Return the imports of each file of the package, parsed once."""
    return {file: [*imports_of(file)] for file in PACKAGE.rglob("*.py")}


@pytest.mark.slow
def test_package_imports_only_packages_of_earlier_layers(imports: dict[Path, list[str]]) -> None:
    wrong = []
    for file, names in imports.items():
        package = package_of(file)
        allowed = LAYERS[package] | {package}
        is_independent = package in WITHOUT_AIRFLOW and file != PACKAGE / AIRFLOW_SERVER
        for name in names:
            top, _, rest = name.partition(".")
            is_below = top == "tradewind" and rest and rest.split(".")[0] not in allowed
            if is_below or (top == "airflow" and is_independent) or name.endswith(Path(AIRFLOW_SERVER).stem):
                wrong.append(f"{file.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "from us.above import x", "import us.above.x", "from us import above", "from .. import above",
        "from ..above import x", "def f():\n    from .. import above", "if TYPE_CHECKING:\n    from us import above",
    ],
)  # fmt: skip
def test_import_is_detected_in_every_form(tmp_path: Path, line: str) -> None:
    for name in ("below", "above"):
        (tmp_path / "us" / name).mkdir(parents=True)
    file = tmp_path / "us" / "below" / "module.py"
    file.write_text(line)
    assert any(name.startswith("us.above") for name in imports_of(file, tmp_path))


@pytest.mark.slow
def test_names_registered_with_airflow_are_in_public_modules() -> None:
    """Users import these names, and the database stores the triggers' paths, so they must not move."""
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        modules = {name for entry in info[kind] for name in entry["python-modules"]}
        assert modules and {name.rpartition(".")[0] for name in modules} == {f"tradewind.{kind}"}
        for name in modules:
            importlib.import_module(name)
    classes = [entry["hook-class-name"] for entry in info["connection-types"]]
    classes += [*info["extra-links"], *(entry["class-name"] for entry in info["task-decorators"])]
    for module, _, name in (path.rpartition(".") for path in classes):
        assert module.split(".")[1] in ("hooks", "links", "decorators")
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.slow
def test_wheel_contents_do_not_refer_to_repository(imports: dict[Path, list[str]]) -> None:
    packed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    around = {"benchmarks", "dags", "demo", "scripts", "tests"}
    pipelines = {file.stem for file in (REPOSITORY / "dags").glob("*.py")} | {"code_lm"}
    assert packed["packages"] == ["operators/tradewind", "plugins/tradewind_ui"]
    for file in (file for folder in packed["packages"] for file in (REPOSITORY / folder).rglob("*.py")):
        imported = imports.get(file) or imports_of(file)
        assert not {name.split(".")[0] for name in imported} & around, f"{file} imports a module outside the wheel"
        assert not [name for name in pipelines if re.search(rf"\b{name}\b", file.read_text())], (
            f"{file} names a pipeline of this checkout"
        )


@pytest.mark.slow
def test_steps_need_only_the_standard_library(imports: dict[Path, list[str]]) -> None:
    known = sys.stdlib_module_names | {"tradewind"}
    steps = [file for file in imports if package_of(file) == "steps"]
    wrong = [(file.name, name) for file in steps for name in imports[file] if name.split(".")[0] not in known]
    assert steps and wrong == []


# Modules without a file are namespaces, for example ``google``: some packages add them to every Python process.
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


@pytest.mark.slow
def test_dag_parsing_imports_nothing_heavy_and_is_deterministic(tmp_path: Path) -> None:
    first, second = (parse_dags(tmp_path, seed) for seed in ("1", "4242"))
    assert first["errors"] == {}
    assert {"hello_world", "nightly_code_lm"} <= first["dags"].keys()
    heavy = {name for name in first["modules"] if name.split(".")[0] in HEAVY}
    assert heavy == set()
    assert first["dags"] == second["dags"]


@pytest.mark.slow
def test_package_imports_without_airflow() -> None:
    code = (
        "import sys; sys.modules['airflow'] = None\n"
        "import tradewind, tradewind.runtime.run_step, tradewind.recipes.train_lm, tradewind.datasets.clean\n"
        "import os; os.environ['TRADEWIND_STEP'] = 'x'\n"
        f"sys.path.insert(0, {str(REPOSITORY / 'dags')!r})\n"
        "import hello_world, nightly_code_lm\n"
        "from tradewind.serialization.references import Reference\n"
        "assert Reference('ingest_train_publish', 'fit').load().__name__ == 'fit'\n"
        "from airflow.sdk import Variable\n"
        "for use in (bool, len, int, float, str, list, os.fspath, 'b'.__contains__, lambda it: it == 1, '{}'.format):\n"
        "    try: use(Variable.get('x')['y'] + 1)\n"
        "    except (ImportError, TypeError): pass\n"
        "    else: raise AssertionError(use)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
