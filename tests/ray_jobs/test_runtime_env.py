"""Checks of a runtime_env refuse fields that Ray accepts but handles differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray._common.runtime_env_uri import Protocol
from ray.runtime_env import RuntimeEnv

from tradewind.ray_jobs.errors import BadRequestError
from tradewind.ray_jobs.runtime_env import FIELDS, URI_SCHEMES, prepare_runtime_env


def refused(runtime_env: Any) -> str:
    with pytest.raises(BadRequestError) as caught:
        prepare_runtime_env(runtime_env)
    return str(caught.value)


def test_the_fields_are_those_of_the_installed_ray() -> None:
    public = {name for name in RuntimeEnv.known_fields if not name.startswith("_")}
    assert public | {"nsight", "rocprof_sys"} == FIELDS


def test_the_schemes_are_those_of_the_installed_ray() -> None:
    ours = {"gcs", "local", *(each.value for each in Protocol.remote_protocols())}
    assert ours == set(URI_SCHEMES)


def test_a_runtime_env_without_folders_stays_as_it_is() -> None:
    given = {"env_vars": {"A": "1"}, "uv": ["scipy==1.14"], "config": {"setup_timeout_seconds": 900}}
    assert prepare_runtime_env(given) == given
    assert prepare_runtime_env({}) == {}


@pytest.mark.parametrize(
    "uri", ["gs://b/code.zip", "https://h/x.tar.gz?sig=1", "local:///opt/code", "gcs://_ray_pkg_1.zip"]
)
def test_what_the_cluster_fetches_by_itself_passes(uri: str) -> None:
    assert prepare_runtime_env({"working_dir": uri}) == {"working_dir": uri}
    assert prepare_runtime_env({"py_modules": [uri]}) == {"py_modules": [uri]}


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
    ],
)
def test_a_field_that_ray_would_misread_is_refused(runtime_env: Any, why: str) -> None:
    assert why in refused(runtime_env)


def test_non_string_env_var_refused_and_redacted() -> None:
    message = refused({"env_vars": {"PIN": 4711}})
    assert "'PIN' is of type int" in message and "4711" not in message


def test_each_mistake_has_its_type(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError):
        prepare_runtime_env({"zebra": 1})
    with pytest.raises(BadRequestError):
        prepare_runtime_env({"working_dir": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
    ("working_dir", "why"),
    [
        ("{tmp}/nowhere", "does not exist on this machine"),
        ("{tmp}/file.py", "is a file: give the folder that holds it"),
        ("gs://bucket/folder", "is no archive: Ray fetches whole archives"),
        ("ftp://host/x.zip", "Ray can fetch only from"),
        ("", "is no path"),
        (7, "is no path"),
    ],
)
def test_a_working_dir_that_cannot_travel_is_refused(tmp_path: Path, working_dir: Any, why: str) -> None:
    (tmp_path / "file.py").touch()
    given = working_dir.format(tmp=tmp_path) if isinstance(working_dir, str) else working_dir
    assert why in refused({"working_dir": given})


def test_an_archive_and_single_files_pass(tmp_path: Path) -> None:
    for name in ("code.zip", "module.py", "module.whl", "notes.txt"):
        (tmp_path / name).write_text("x")
    assert "excludes" not in prepare_runtime_env({"working_dir": str(tmp_path / "code.zip")})
    assert prepare_runtime_env({"py_modules": [tmp_path / "module.py", tmp_path / "module.whl"]})["py_modules"] == [
        str(tmp_path / "module.py"),
        str(tmp_path / "module.whl"),
    ]
    assert "neither a folder nor a .py or .whl file" in refused({"py_modules": [str(tmp_path / "notes.txt")]})


def test_own_excludes_come_after_ours_so_that_they_win(tmp_path: Path) -> None:
    excludes = prepare_runtime_env({"working_dir": tmp_path, "excludes": ["data", "!/docs"]})["excludes"]
    assert excludes[-3:] == ["data", "!/docs", "!/docs/**"]
    assert {".git", "__pycache__", "/docs", "/outputs"} < set(excludes)


def test_modules_keep_their_folders_whatever_these_are_called(tmp_path: Path) -> None:
    excludes = prepare_runtime_env({"py_modules": [str(tmp_path)]})["excludes"]
    assert ".git" in excludes and "/logs" not in excludes
