"""Checks of a runtime_env refuse fields that Ray accepts but handles differently."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from ray._common.runtime_env_uri import Protocol
from ray.runtime_env import RuntimeEnv

from tradewind.ray_jobs.client import unexpanded_env
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.ray_jobs.runtime_env import FIELDS, URI_SCHEMES, prepare_runtime_env

CIRCLE: dict[str, Any] = {}
CIRCLE["again"] = [CIRCLE]
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


def refused(runtime_env: Any) -> str:
    with pytest.raises(BadRequestError) as caught:
        prepare_runtime_env(runtime_env)
    return str(caught.value)


def test_fields_and_schemes_are_those_of_installed_ray() -> None:
    public = {name for name in RuntimeEnv.known_fields if not name.startswith("_")}
    assert public | {"nsight", "rocprof_sys"} == FIELDS
    assert {"gcs", "local", *(each.value for each in Protocol.remote_protocols())} == set(URI_SCHEMES)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"env_vars": {"A": "1"}, "uv": ["scipy==1.14"], "config": {"setup_timeout_seconds": 900}},
        *(
            env
            for uri in ("gs://b/code.zip", "https://h/x.tar.gz?sig=1", "local:///opt/code", "gcs://_ray_pkg_1.zip")
            for env in ({"working_dir": uri}, {"py_modules": [uri]})
        ),
    ],
)
def test_runtime_env_without_local_folder_is_unchanged(given: dict[str, Any]) -> None:
    assert prepare_runtime_env(given) == given


@pytest.mark.parametrize(
    ("runtime_env", "why"),
    [
        ({"workingdir": "/x"}, "runtime_env has no field 'workingdir': did you mean 'working_dir'?"),
        ({"zebra": 1}, "there are conda, config"),
        ("x", "give a dictionary"),
        ({"pip": ["a"], "uv": ["b"]}, "pip and uv: Ray takes only one of them"),
        ({"env_vars": ["A=1"]}, "must be a dictionary"),
        ({"env_vars": {"": "1"}}, "no valid name"),
        ({"env_vars": {"A=B": "1"}}, "no valid name"),
        ({"excludes": "docs"}, "must be a list of patterns"),
        ({"py_modules": "x"}, "must be a list"),
        ({"working_dir": "gs://bucket/folder"}, "is no archive: Ray fetches whole archives"),
        ({"working_dir": "ftp://host/x.zip"}, "Ray can fetch only from"),
        ({"working_dir": ""}, "is no path"),
        ({"working_dir": 7}, "is no path"),
        ({"working_dir": "/dev/zero"}, "is a named pipe, a socket or a device"),
        ({"working_dir": "/tmp/\0"}, "is no path: it holds a NUL, or is not UTF-8"),
        ({"working_dir": "/caf\udce9"}, "is no path: it holds a NUL, or is not UTF-8"),
        ({"working_dir": "/" + "x" * 300}, "cannot be read (File name too long)"),
        ({"uv": "/dev/zero"}, "uv /dev/zero cannot be used: it is no regular file"),
        ({"env_vars": {"A": "x\0y"}}, "'A' holds a NUL"),
        ({"env_vars": {"A": "\udce9"}}, "'A' is not UTF-8"),
        ({"env_vars": {"A": "x" * (128 << 10)}}, "has less than 128 KiB"),
        ({"env_vars": {f"A{number}": "x" * 1000 for number in range(2000)}}, "all have at most 1 MiB"),
        ({"config": CIRCLE}, "Circular reference detected"),
        ({"pip": DEEP}, "nests too deep"),
        ({"config": {"a": b"x"}}, "it holds a bytes"),
        ({"config": {"a": math.nan}}, "cannot be sent as JSON"),
        ({"config": {"a": 10**5000}}, "cannot be sent as JSON"),
    ],
)
def test_field_that_ray_would_misread_is_refused(runtime_env: Any, why: str) -> None:
    assert why in refused(runtime_env)


def test_non_string_env_var_refused_and_redacted() -> None:
    message = refused({"env_vars": {"PIN": 4711}})
    assert "'PIN' is of type int" in message and "4711" not in message


def test_archives_and_single_files_are_accepted_by_field(tmp_path: Path) -> None:
    for name in ("code.zip", "module.py", "module.whl", "notes.txt"):
        (tmp_path / name).write_text("x")
    assert "excludes" not in prepare_runtime_env({"working_dir": str(tmp_path / "code.zip")})
    modules = [tmp_path / "module.py", tmp_path / "module.whl"]
    assert prepare_runtime_env({"py_modules": modules})["py_modules"] == [str(module) for module in modules]
    assert "neither a folder nor a .py or .whl file" in refused({"py_modules": [str(tmp_path / "notes.txt")]})
    assert "is a file: give the folder that holds it" in refused({"working_dir": str(tmp_path / "module.py")})
    assert "does not exist on this machine" in refused({"working_dir": str(tmp_path / "nowhere")})


def test_excludes_of_caller_follow_and_override_defaults(tmp_path: Path) -> None:
    excludes = prepare_runtime_env({"working_dir": tmp_path, "excludes": ["data", "!/docs"]})["excludes"]
    assert excludes[-3:] == ["data", "!/docs", "!/docs/**"]
    assert {".git", "__pycache__", "/docs", "/outputs"} < set(excludes)


def test_modules_keep_folders_excluded_from_working_dir(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    excludes = prepare_runtime_env({"py_modules": [str(tmp_path)]})["excludes"]
    assert {".git", "/docs"} <= {*excludes} and "/logs" not in excludes


@pytest.mark.parametrize(
    ("fields", "raw"),
    [
        ({}, set()),
        ({"working_dir": "$A"}, set()),
        ({"image_uri": "python:3.11"}, {"A", "B", "PIP_URL", "UV_URL", "CONDA_URL"}),
        ({"container": {"image": "python"}}, {"A", "B", "PIP_URL", "UV_URL", "CONDA_URL"}),
        ({"pip": ["x"]}, {"PIP_URL", "UV_URL", "CONDA_URL"}),
        ({"pip": {"packages": ["x @ https://${A}@host/x.whl"]}}, {"A", "PIP_URL", "UV_URL", "CONDA_URL"}),
        (
            {"uv": {"packages": ["x"], "uv_pip_install_options": ["--find-links $B"]}},
            {"B", "PIP_URL", "UV_URL", "CONDA_URL"},
        ),
        ({"conda": {"dependencies": ["x", {"pip": ["y"]}]}}, {"PIP_URL", "UV_URL", "CONDA_URL"}),
    ],
)
def test_dollars_are_escaped_unless_ray_reads_them_raw(fields: dict[str, Any], raw: set[str]) -> None:
    given = {"A": "a$b", "B": "${A}", "PIP_URL": "a$b", "UV_URL": "a$b", "CONDA_URL": "a$b"}
    made = unexpanded_env({**fields, "env_vars": given})
    assert {name for name in given if made["env_vars"][name] == given[name]} == raw
    assert all(made["env_vars"][name] == given[name].replace("$", "$${0}") for name in given.keys() - raw)
    assert {**made, "env_vars": given} == {**fields, "env_vars": given}
