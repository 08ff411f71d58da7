"""What travels with a job is what Ray would take, without what nobody needs, and never more than Ray takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package
from ray.job_submission import JobSubmissionClient

from tests.ray_jobs.ended_jobs import ended_job
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.environment.runtime_env import prepared
from tradewind.ray_jobs.environment.working_dir import TravellingFolder, package_limit
from tradewind.ray_jobs.errors import BadWorkingDirError, RayJobRefusedError
from tradewind.ray_jobs.request import JobRequest

KEPT = ("pipeline.py", "pkg/__init__.py", "pkg/logs/__init__.py", "pkg/data.json", ".gitignore", "tests/helper.py")
LEFT = (
    ".git/HEAD", "third_party/lib/.git", "third_party/other/.git/config", "pkg/__pycache__/x.cpython-311.pyc",
    ".venv/bin/python", "node_modules/x/index.js", "logs/run.log", "outputs/model.bin", "docs/index.md", ".env",
    "objects.pack", "pkg/.DS_Store", ".mypy_cache/x", "ignored/by_git", "pkg/ignored_by_ray", "scratch/mine.txt",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    for name in (*KEPT, *LEFT):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"contents of {name}\n")
    (root / ".gitignore").write_text("/ignored\n")
    (root / "pkg" / ".rayignore").write_text("ignored_by_ray\n")
    return root


def travelling(runtime_env: dict) -> set[str]:
    ready = prepared(runtime_env)
    return {file.path for file in TravellingFolder(Path(ready["working_dir"]), ready["excludes"]).files()}


def sparse(file: Path, size: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        opened.truncate(size)


def refused(runtime_env: dict) -> str:
    with pytest.raises(BadWorkingDirError) as caught:
        prepared(runtime_env)
    return str(caught.value)


def test_what_nobody_needs_stays_at_any_depth(folder: Path) -> None:
    files = travelling({"working_dir": str(folder), "excludes": ["scratch"]})
    assert {name for name in files if not name.startswith("third_party/")} == {*KEPT, "pkg/.rayignore"}
    assert not [name for name in files if ".git" in Path(name).parts]


def test_an_own_pattern_brings_a_folder_back(folder: Path) -> None:
    assert "docs/index.md" in travelling({"working_dir": str(folder), "excludes": ["!/docs"]})


def test_ray_makes_a_package_of_just_these_files_and_this_size(folder: Path, tmp_path: Path) -> None:
    excludes = prepared({"working_dir": str(folder)})["excludes"]
    for keeps_name in (False, True):
        made = tmp_path / f"made-{keeps_name}.zip"
        create_package(str(folder), made, include_gitignore=True, include_parent_dir=keeps_name, excludes=excludes)
        travels = TravellingFolder(folder, excludes, keeps_name=keeps_name)
        assert travels.package_bytes(list(travels.files())) == os.path.getsize(made)


def test_the_history_of_a_repository_is_refused_when_it_is_brought_back(folder: Path) -> None:
    message = refused({"working_dir": str(folder), "excludes": ["!.git"]})
    assert f"working_dir {folder} would carry " in message and "'!.git'" in message


def test_a_folder_above_the_limit_is_refused_with_what_is_large_in_it(folder: Path) -> None:
    sparse(folder / "data" / "a.bin", package_limit() - 3 * 2**20)
    sparse(folder / "data" / "deep" / "b.bin", 2 * 2**20)
    sparse(folder / "weights.bin", 2 * 2**20)
    sparse(folder / ".git" / "huge.bin", 2**40)
    message = refused({"working_dir": str(folder)})
    limit = package_limit() / 2**20
    assert f"Ray's Jobs API takes less than {limit:.1f} MiB" in message
    assert f"the largest in it are data/ ({limit - 1:.1f} MiB), weights.bin (2.0 MiB), " in message
    assert "huge" not in message
    prepared({"working_dir": str(folder), "excludes": ["data"]})


def test_a_module_and_an_archive_above_the_limit_are_refused_too(tmp_path: Path) -> None:
    sparse(tmp_path / "module" / "table.bin", package_limit())
    sparse(tmp_path / "code.zip", package_limit())
    assert "py_modules" in refused({"py_modules": [str(tmp_path / "module")]})
    assert "would be a package of" in refused({"working_dir": str(tmp_path / "code.zip")})


# ---- on a real head


@pytest.mark.ray
def test_what_should_arrive_arrives_and_nothing_else(jobs: RayJobs, folder: Path) -> None:
    runtime_env = prepared({"working_dir": str(folder), "excludes": ["scratch", "third_party"]})
    command = "find . -type f -not -name '*.log' | sort | sed s,^./,FOUND:,"
    jobs.submit_or_attach(JobRequest("arrives", command, runtime_env))
    status, lines = ended_job(jobs, "arrives")
    assert status == "SUCCEEDED", lines
    assert {line.removeprefix("FOUND:") for line in lines if line.startswith("FOUND:")} == {*KEPT, "pkg/.rayignore"}


@pytest.mark.ray
def test_the_limit_is_where_the_cluster_draws_it(jobs: RayJobs, tmp_path: Path) -> None:
    below, above = tmp_path / "below", tmp_path / "above"
    sparse(below / "data.bin", package_limit() - 2**12)
    sparse(above / "data.bin", package_limit())
    assert jobs.submit_or_attach(JobRequest("below", "true", prepared({"working_dir": str(below)})))
    refused({"working_dir": str(above)})
    with pytest.raises(RayJobRefusedError, match="413|exceed"):
        jobs.submit_or_attach(JobRequest("above", "true", {"working_dir": str(above)}))


@pytest.mark.ray
@pytest.mark.parametrize("bad", ["a#b", "a?b", "..", "a{b}"])
def test_ray_takes_the_ids_that_we_refuse_and_then_cannot_find_them(jobs: RayJobs, bad: str) -> None:
    client = JobSubmissionClient(jobs.cluster.address)
    client.submit_job(entrypoint="true", submission_id=bad)
    with pytest.raises(RuntimeError):
        client.get_job_info(bad)
