"""Drivers of a script's steps inherit settings from the Ray job that runs the script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.local.step import driver_env


def job_env(runtime_env: dict[str, Any], **env: str) -> dict[str, str]:
    return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": runtime_env, "metadata": {"a": "b"}}), **env}


def path_of_workers(env: dict[str, str]) -> str:
    path: str = json.loads(env["RAY_JOB_CONFIG_JSON_ENV_VAR"])["runtime_env"]["env_vars"]["PYTHONPATH"]
    return path


def test_workers_import_script_below_working_dir_on_any_node(tmp_path: Path) -> None:
    runtime_env = {"working_dir": "gcs://package.zip", "env_vars": {"PYTHONPATH": "src", "A": "1"}}
    folder = tmp_path / "project" / "experiments"
    folder.mkdir(parents=True)
    given = job_env(runtime_env, PYTHONPATH=f"{tmp_path / 'project'}:src:/elsewhere")
    env = driver_env(given, folder)
    assert path_of_workers(env) == "experiments:src"
    job = json.loads(env["RAY_JOB_CONFIG_JSON_ENV_VAR"])
    assert job["metadata"] == {"a": "b"}
    assert (job["runtime_env"]["working_dir"], job["runtime_env"]["env_vars"]["A"]) == ("gcs://package.zip", "1")


@pytest.mark.parametrize("runtime_env", [{}, {"working_dir": "gcs://package.zip"}])
def test_workers_import_script_outside_working_dir_by_path(tmp_path: Path, runtime_env: dict[str, Any]) -> None:
    paths = "/elsewhere" if runtime_env else str(tmp_path)
    assert path_of_workers(driver_env(job_env(runtime_env, PYTHONPATH=paths), tmp_path)) == str(tmp_path.resolve())


def test_driver_pythonpath_resolves_from_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for env in ({"PYTHONPATH": "src:/elsewhere"}, job_env({}, PYTHONPATH="src:/elsewhere")):
        assert driver_env(env, tmp_path / "experiments")["PYTHONPATH"] == f"{tmp_path / 'src'}:/elsewhere"
    assert driver_env({"A": "1"}, tmp_path) == {"A": "1"}
