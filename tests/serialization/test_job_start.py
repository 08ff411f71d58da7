"""What a job's start does with the Python that it finds. Ray's side is in ``tests/adopt``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tradewind
from tradewind._version import __version__
from tradewind.serialization.job_start import JobStart, start_command, start_env
from tradewind.serialization.preflight import EXIT_UNUSABLE

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


@pytest.mark.parametrize(
    ("ship", "version", "needs", "expected"),
    [
        ("auto", None, [], REACHED),
        ("always", __version__, [], REACHED),
        ("auto", "0.0.9", [], f"has Tradewind 0.0.9, and Airflow has {__version__}. This job uses Airflow's"),
        ("auto", __version__, [], f"Tradewind {__version__} has no tradewind.runtime.run_callable"),  # it is used
        ("auto", None, ["no_fs", "json"], "has no no_fs, which the step needs: run "),
        ("never", None, [], f"pip install airflow-provider-tradewind=={__version__}"),
        ("never", "0.0.9", [], "Tradewind 0.0.9 has no tradewind.runtime.run_callable, and Airflow has"),
    ],
)
def test_start_uses_or_refuses_what_the_node_has(
    ship: str, version: str | None, needs: list[str], expected: str, tmp_path: Path
) -> None:
    shipped = tmp_path / "runtime_resources/py_modules_files/pkg"
    path = [] if version is None else [installed(tmp_path / "site", version)]
    if ship != "never":
        shutil.copytree(Path(tradewind.__file__).parent, shipped / "tradewind")
        path.insert(0, str(shipped))
    env = start_env({}, JobStart(ship, BARE), needs)["env_vars"]  # type: ignore[arg-type]
    code, output = run(env, path)
    assert expected in output
    assert (code == EXIT_UNUSABLE) == (REACHED not in output)


def run(env: dict[str, str], path: list[str]) -> tuple[int, str]:
    """Run the entrypoint through a shell, as Ray does."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **env}
    ended = subprocess.run(ENTRYPOINT, shell=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.returncode, ended.stdout


def test_python_that_does_not_exist_is_refused() -> None:
    code, output = run(start_env({}, JobStart("never", "/no/python"))["env_vars"], [])
    assert code == EXIT_UNUSABLE and "Python /no/python was not found" in output


def test_environment_of_an_installer_keeps_its_own_python(tmp_path: Path) -> None:
    env = start_env({"pip": ["x"]}, JobStart("never"))["env_vars"]
    (tmp_path / "python").write_text("#!/bin/sh\necho of the PATH\n")
    (tmp_path / "python").chmod(0o755)
    assert run({**env, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, []) == (0, "of the PATH\n")
    assert json.loads(env["TRADEWIND_START_OPTIONS"])["ship"] == "never"
