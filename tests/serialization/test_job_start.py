"""What a job's start does with the Python that it finds. Ray's side is in ``tests/adopt``."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tradewind
from tradewind._version import __version__
from tradewind.ray_jobs.worker_python import EXIT_UNUSABLE, command_of_ray, start_command
from tradewind.recipes.data import score_documents
from tradewind.serialization import preflight
from tradewind.serialization.job_start import JobStart, start_env
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import resolve
from tradewind.tasks.step_job import modules_needed

ENTRYPOINT = start_command("python -u -m tradewind.runtime.run_callable")
BARE = str(Path(sys.executable).resolve())
"""The Python around the tests' environment: it has no Tradewind."""
REACHED = "TRADEWIND_CALL names no call"


def installed(folder: Path, version: str) -> str:
    """Make the metadata of an installed package without modules."""
    metadata = folder / f"airflow_provider_tradewind-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: airflow-provider-tradewind\nVersion: {version}\n")
    return str(folder)


JAX = {"jax": "tradewind[train]", "json": "json", "levanter": "tradewind[train]", "no_fs": "no_fs"}
NONE = f"pip install airflow-provider-tradewind=={__version__}"
PATCH = __version__.rpartition(".")[0] + ".99"


@pytest.mark.parametrize(
    ("ship", "version", "needs", "expected"),
    [
        ("auto", None, {}, [REACHED]),
        ("always", __version__, {}, [REACHED]),
        (
            "auto",
            "0.0.9",
            {},
            [REACHED, f"has Tradewind 0.0.9, and Airflow has {__version__}. This job uses Air"],
        ),
        ("auto", __version__, {}, [f"Tradewind {__version__}, and", "no tradewind.runtime.run_callable"]),  # it is used
        (
            "auto",
            None,
            JAX,
            ["no jax and no levanter and no no_fs,", "install 'tradewind[train]' no_fs on each"],
        ),
        ("never", None, {}, ["has no Tradewind", NONE]),
        ("never", "0.0.9", {}, [f"has Tradewind 0.0.9, and Airflow has {__version__}, whose records", NONE]),
        ("never", PATCH, {}, ["This job uses the cluster's", "the cluster's has no tradewind.runtime.run_call", NONE]),
    ],
)
def test_start_uses_or_refuses_what_the_node_has(
    ship: str, version: str | None, needs: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    shipped = tmp_path / "runtime_resources/py_modules_files/pkg"
    path = [] if version is None else [installed(tmp_path / "site", version)]
    if ship != "never":
        shipped.mkdir(parents=True)
        (shipped / "tradewind").symlink_to(Path(tradewind.__file__).parent)
        path.insert(0, str(shipped))
    env = start_env({}, JobStart(ship, BARE), needs)["env_vars"]  # type: ignore[arg-type]
    code, output = run(ENTRYPOINT, env, path)
    assert all(part in output for part in expected), output
    assert (code == EXIT_UNUSABLE) == (REACHED not in output)


def run(entrypoint: str, env: dict[str, str], path: list[str], raylet: str | None = None) -> tuple[int, str]:
    """Run the entrypoint through a shell, as Ray does; ``raylet`` is the Python of its workers."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **env}
    command = ["/bin/sh", "-c", entrypoint]
    if raylet:  # Ray's command line, in a process above
        above = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[2:]))"
        command = [sys.executable, "-c", above, f'--python_worker_command="{raylet} /x/default_worker.py"', *command]
    ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(
    ("runtime_env", "named", "code", "expected"),
    [
        ({}, None, EXIT_UNUSABLE, f"{BARE} has no Tradewind"),
        ({}, sys.executable, 1, REACHED),
        ({}, "/no/python", EXIT_UNUSABLE, "Python /no/python was not found on "),
        ({"pip": ["x"]}, None, 0, "of the PATH"),
        ({"image_uri": "x"}, sys.executable, 1, REACHED),
        ({"image_uri": "x"}, BARE, EXIT_UNUSABLE, f"tradewind=={__version__} in its image."),
        ({"py_executable": f"{sys.executable} -u"}, None, 1, REACHED),
    ],
)
def test_python_is_of_ray_connection_or_installer(
    runtime_env: dict[str, object], named: str | None, code: int, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho of the PATH\n")
    (tmp_path / "python").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = run(
        ENTRYPOINT,
        {**start_env(runtime_env, JobStart("auto", named), ships="image_uri" in runtime_env)["env_vars"], **env},
        [],
        BARE,
    )
    assert found[0] == code and expected in found[1]
    prints = command_of_ray(["-c", "import sys; print(sys.executable, sys.argv[1:])", "a b"])
    assert run(prints, env, [], BARE) == (0, f"{BARE} ['a b']\n")


@pytest.mark.parametrize(
    ("function", "output", "modules"),
    [
        ("tradewind.recipes.train_lm:train_lm", "gs://bucket/a", ["fsspec", "gcsfs", "jax", "levanter"]),
        ("tradewind.recipes.lm.run:run_levanter_train_lm", "/a", ["fsspec", "jax", "levanter"]),
        ("tradewind.recipes.tokenizers:train_bpe_tokenizer", "/a", ["fsspec", "tokenizers", "transformers"]),
        ("tradewind.datasets.downloads:download_hf", "s3://bucket/a", ["fsspec", "s3fs"]),
        ("my_module_that_is_only_on_the_cluster:train", "/a", ["fsspec"]),
    ],
)
def test_needs_are_of_store_and_recipe(function: str, output: str, modules: list[str]) -> None:
    needed = modules_needed(StepSpec("s", "s-1", output, function, None, {}, {}, False))
    assert sorted(needed) == modules
    libraries = {needed[module] for module in modules if module not in ("fsspec", "gcsfs", "s3fs")}
    assert libraries <= {f"airflow-provider-tradewind[train]=={__version__}"}


def test_needs_are_of_pipeline_and_its_extra(tmp_path: Path) -> None:
    step = resolve([score_documents("scores", "/documents", "/model.bin")], "/a").steps[0]
    needed = modules_needed(step_spec(step, CodeFolder(tmp_path)))
    assert {"fasttext", "sklearn"} < needed.keys()
    assert needed["fasttext"] == f"airflow-provider-tradewind[quality]=={__version__}"


def test_preflight_has_syntax_of_an_old_python() -> None:
    ast.parse(Path(preflight.__file__).read_text(), feature_version=(3, 8))
