"""The uploaded working directory holds what Ray would take, without unused files, within Ray's limit."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray._private.runtime_env.packaging import create_package

from tests.ray_jobs.ended_jobs import ended_job
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.errors import BadRequestError, RayJobRefusedError
from tradewind.ray_jobs.request import JobRequest
from tradewind.ray_jobs.runtime_env import WorkingDirPackage, package_limit, prepare_runtime_env

INCLUDED = ("pipeline.py", "pkg/__init__.py", "pkg/logs/__init__.py", "pkg/data.json", ".gitignore", "tests/helper.py")
EXCLUDED = (
    ".git/HEAD", "third_party/lib/.git", "third_party/other/.git/config", "pkg/__pycache__/x.cpython-311.pyc",
    ".venv/bin/python", "node_modules/x/index.js", "logs/run.log", "outputs/model.bin", "docs/index.md", ".env",
    "objects.pack", "pkg/.DS_Store", ".mypy_cache/x", "ignored/by_git", "pkg/ignored_by_ray", "scratch/mine.txt",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    for name in (*INCLUDED, *EXCLUDED):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"contents of {name}\n")
    (root / ".gitignore").write_text("/ignored\n")
    (root / "pkg" / ".rayignore").write_text("ignored_by_ray\n")
    return root


def uploaded(runtime_env: dict) -> set[str]:
    ready = prepare_runtime_env(runtime_env)
    return {file.path for file in WorkingDirPackage(Path(ready["working_dir"]), ready["excludes"]).files()}


def sparse(file: Path, size: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        opened.truncate(size)


def refused(runtime_env: dict) -> str:
    with pytest.raises(BadRequestError) as caught:
        prepare_runtime_env(runtime_env)
    return str(caught.value)


def test_excluded_files_stay_at_any_depth(folder: Path) -> None:
    files = uploaded({"working_dir": str(folder), "excludes": ["scratch"]})
    assert {name for name in files if not name.startswith("third_party/")} == {*INCLUDED, "pkg/.rayignore"}
    assert not [name for name in files if ".git" in Path(name).parts]
    assert "docs/index.md" in uploaded({"working_dir": str(folder), "excludes": ["!/docs"]})


def test_package_has_size_of_package_made_by_ray(folder: Path, tmp_path: Path) -> None:
    excludes = prepare_runtime_env({"working_dir": str(folder)})["excludes"]
    for keeps_name in (False, True):
        made = tmp_path / f"made-{keeps_name}.zip"
        create_package(str(folder), made, include_gitignore=True, include_parent_dir=keeps_name, excludes=excludes)
        package = WorkingDirPackage(folder, excludes, keeps_name=keeps_name)
        assert package.package_bytes(list(package.files())) == os.path.getsize(made)


@pytest.mark.parametrize(
    ("link", "leads_to", "why"),
    [
        ("key", "../../outside/key", "leads out of it, to "),
        ("key", "/proc/self/environ", "leads out of it, to /proc/"),
        ("pkg/keys", "../../outside", "leads out of it, to "),
        ("up", "..", "leads out of it, to "),
        ("pkg/settings", "../.env", "leads to .env, which is not uploaded"),
        ("shown", "ignored", "leads to ignored, which is not uploaded"),
        ("pkg/again", "..", "leads to a folder around it"),
        ("again", ".", "leads to a folder around it"),
    ],
)
def test_link_to_file_not_uploaded_itself_is_refused(link: str, leads_to: str, why: str, folder: Path) -> None:
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "key").write_text("hidden")
    (folder / link).symlink_to(leads_to.replace("../../outside", str(folder.parent / "outside")))
    message = refused({"working_dir": str(folder)})
    assert f"the link {link!r} {why}" in message and "hidden" not in message
    assert link not in uploaded({"working_dir": str(folder), "excludes": [link]})


def test_links_to_each_other_are_refused(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        for number in range(3):
            (folder / name / f"to-{number}").symlink_to(folder / ("b" if name == "a" else "a"))
    message = refused({"working_dir": str(folder)})
    assert re.search(r"the link '[ab]/to-\d/to-\d' leads to a folder around it, or from one link to another", message)


def test_links_within_folder_are_uploaded_as_targets(folder: Path) -> None:
    (folder / "alias").symlink_to("pkg")
    (folder / "pkg" / "script.py").symlink_to("../pipeline.py")
    (folder / "nowhere").symlink_to("gone")
    (folder / "circle").symlink_to("circle")
    (folder.parent / "link-to-all").symlink_to(folder)
    for root in (folder, folder.parent / "link-to-all"):
        files = uploaded({"working_dir": str(root)})
        assert {"alias/data.json", "pkg/script.py", "pkg/data.json", "pipeline.py"} <= files
        assert not files & {"nowhere", "circle"}


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("pipe", os.mkfifo, "the entry 'pkg/pipe' is a named pipe, a socket or a device: exclude it"),
        ("socket", lambda at: os.mknod(at, stat.S_IFSOCK | 0o600), "the entry 'pkg/socket' is a named pipe, a socket"),
        (".gitignore", os.mkfifo, "the entry 'pkg/.gitignore' is a named pipe"),
        ("\x1b[2J", os.mkfifo, r"the entry 'pkg/\x1b[2J' is a named pipe"),
        ("zero", lambda at: at.symlink_to("/dev/zero"), "the entry 'pkg/zero' is a named pipe"),
        ("caf\udce9.py", Path.touch, r"the entry 'pkg/caf\udce9.py' has a name that is not UTF-8"),
        ("/".join("d" * 101), lambda at: at.mkdir(parents=True), "is below more than 100 folders"),
        (".gitignore", lambda at: at.write_bytes(b"caf\xe9\n"), "pkg/.gitignore cannot be used: it is no text"),
        ("a/.rayignore", lambda at: at.write_text("x\n[z-a]\n"), "pkg/a/.rayignore: line 2, '[z-a]', is no pattern"),
        (".rayignore", lambda at: at.write_text("*" * 5000 + "x"), "pkg/.rayignore: line 1, '*****"),
        (".rayignore", lambda at: at.write_text("*a*a*a*b"), "pkg/.rayignore: line 1, '*a*a*a*b', is no pattern as in"),
        (".gitignore", lambda at: at.write_text("x\n" * 5001), "pkg/.gitignore has 5,001 patterns"),
    ],
)
def test_entry_that_ray_could_not_pack_is_refused(
    name: str, make: Callable[[Path], object], why: str, folder: Path
) -> None:
    (folder / "pkg" / name).parent.mkdir(exist_ok=True, parents=True)
    make(folder / "pkg" / name)
    assert why in refused({"working_dir": str(folder)})
    assert why.replace("pkg/", "") in refused({"py_modules": [str(folder / "pkg")]})
    if "the entry" in why:  # Ray reads the ignore files of excluded folders too
        prepare_runtime_env({"working_dir": str(folder), "excludes": ["pkg"]})


def test_entry_that_this_user_may_not_read_is_refused() -> None:
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        for name, why in (("a.py", "the entry 'a.py' may not be read by"), ("b", "/b/.gitignore': Permission denied")):
            entry = Path(root, name)
            (entry.mkdir if name == "b" else entry.touch)(0)
            if is_root := os.geteuid() == 0:
                os.seteuid(65534)
            try:
                assert why in refused({"working_dir": root})
            finally:
                if is_root:
                    os.seteuid(0)
                (entry.rmdir if name == "b" else entry.unlink)()


@pytest.mark.parametrize(
    ("file", "line", "where"),
    [
        (".gitignore", "pipeline.py", "line 3 of {folder}/.gitignore, 'pipeline.py', excludes it"),
        (".rayignore", "*.py", "line 3 of {folder}/.rayignore, '*.py', excludes it"),
        ("pkg/.gitignore", "__init__.*", "'pkg/__init__.py', which the job imports: line 3 of {folder}/pkg/.gitignore"),
        (None, "/pkg", "'pkg/__init__.py', which the job imports: excludes pattern '/pkg' excludes it"),
    ],
)
def test_exclusion_of_needed_file_is_refused(folder: Path, file: str | None, line: str, where: str) -> None:
    runtime_env: dict[str, Any] = {"working_dir": str(folder)}
    needed = ["pipeline.py", "pkg/__init__.py"]
    prepare_runtime_env(runtime_env, needed)
    if file is None:
        runtime_env["excludes"] = [line]
    else:
        (folder / file).write_text(f"# ours\nno_such\n{line}\n")
    with pytest.raises(BadRequestError) as refusal:
        prepare_runtime_env(runtime_env, needed)
    assert where.format(folder=folder) in str(refusal.value)


def test_reincluded_git_history_refused(folder: Path) -> None:
    message = refused({"working_dir": str(folder), "excludes": ["!.git"]})
    assert f"working_dir {folder} would include " in message and "'!.git'" in message


def test_folder_over_limit_refused_naming_largest_entries(folder: Path) -> None:
    sparse(folder / "data" / "a.bin", package_limit() - 3 * 2**20)
    sparse(folder / "data" / "deep" / "b.bin", 2 * 2**20)
    sparse(folder / "weights.bin", 2 * 2**20)
    sparse(folder / ".git" / "huge.bin", 2**40)
    message = refused({"working_dir": str(folder)})
    limit = package_limit() / 2**20
    assert f"Ray's Jobs API takes less than {limit:.1f} MiB" in message
    assert f"the largest in it are data/ ({limit - 1:.1f} MiB), weights.bin (2.0 MiB), " in message
    assert "huge" not in message
    prepare_runtime_env({"working_dir": str(folder), "excludes": ["data"]})


def test_module_and_archive_over_limit_are_refused(tmp_path: Path) -> None:
    sparse(tmp_path / "module" / "table.bin", package_limit())
    sparse(tmp_path / "code.zip", package_limit())
    assert "py_modules" in refused({"py_modules": [str(tmp_path / "module")]})
    assert "would be a package of" in refused({"working_dir": str(tmp_path / "code.zip")})


# ---- on a real head


@pytest.mark.ray
def test_exactly_included_files_arrive_on_cluster(jobs: RayJobs, folder: Path) -> None:
    runtime_env = prepare_runtime_env({"working_dir": str(folder), "excludes": ["scratch", "third_party"]})
    command = "find . -type f -not -name '*.log' | sort | sed s,^./,FOUND:,"
    jobs.submit_or_attach(JobRequest("arrives", command, runtime_env))
    status, lines = ended_job(jobs, "arrives")
    assert status == "SUCCEEDED", lines
    assert {line.removeprefix("FOUND:") for line in lines if line.startswith("FOUND:")} == {*INCLUDED, "pkg/.rayignore"}


@pytest.mark.ray
def test_package_limit_is_that_of_the_cluster(jobs: RayJobs, tmp_path: Path) -> None:
    below, above = tmp_path / "below", tmp_path / "above"
    sparse(below / "data.bin", package_limit() - 2**12)
    sparse(above / "data.bin", package_limit())
    assert jobs.submit_or_attach(JobRequest("below", "true", prepare_runtime_env({"working_dir": str(below)})))
    refused({"working_dir": str(above)})
    with pytest.raises(RayJobRefusedError, match="413|exceed"):
        jobs.submit_or_attach(JobRequest("above", "true", {"working_dir": str(above)}))
