"""Path checks: accepted paths, and no other code that opens a store."""

from __future__ import annotations

import ast
import re
from functools import partial
from pathlib import Path

import pytest

import tradewind
from tradewind.storage import Location, UnsupportedStoreError, UnusablePathError, file_system_at, open_file
from tradewind.storage.files import existing_many, read_many, read_text, write_text
from tradewind.storage.swap import read_stored
from tradewind.storage.trees import list_files

PACKAGE = Path(tradewind.__file__).parent


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/data/out", Location("file", "", "/data/out")),
        ("out/relative", Location("file", "", "out/relative")),
        ("~/out", Location("file", "", "~/out")),
        ("file:///data/out", Location("file", "", "/data/out")),
        ("local:///data/out", Location("file", "", "/data/out")),
        ("gs://bucket", Location("gs", "bucket", "")),
        ("gcs://bucket/a/b", Location("gs", "bucket", "a/b")),
        ("s3a://bucket/a=1/b@2", Location("s3", "bucket", "a=1/b@2")),
        ("memory://a/b", Location("memory", "", "a/b")),
        ("/data/a:b", Location("file", "", "/data/a:b")),
    ],
)
def test_path_is_parsed(path: str, location: Location) -> None:
    assert Location.of(path) == location


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "is empty"),
        (None, "text, not NoneType"),
        (Path("/data"), "text, not "),
        ("reference://::http://127.0.0.1/x", "chain"),
        ("simplecache::gs://bucket/x", "chain"),
        ("gs://bucket/a::b", "chain"),
        ("/data/a::zip://b", "chain"),
        ("data:text/plain,hello", "holds data itself"),
        ("gs://bucket/\0", "NUL"),
        ("/data/\udc80", "half of a character"),
        ("gs://", "names no bucket"),
        ("s3:///key", "names no bucket"),
        ("gs://me:hunter2@bucket/x", "a user's name or a password"),
        ("/" + "x" * 256, "256 bytes"),
        ("gs://bucket/" + "x" * 1025, "1,025 bytes"),
        ("/" + "ab/" * 2000, "6,001 bytes"),
    ],
)
def test_invalid_path_is_refused_with_reason(path: str, why: str) -> None:
    with pytest.raises(UnusablePathError, match=re.escape(why)) as refused:
        Location.of(path)
    assert "hunter2" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "path",
    [
        "http://h/x", "https://h/x", "ftp://h/x", "ssh://h/x", "github://a:b@c/x", "zip://x", "reference://x",
        "dir://x", "GS://bucket/x", "://x", "hdfs://h/x", "abfs://c/x", "jlab://h/x",
    ],
)  # fmt: skip
def test_other_stores_are_refused_without_their_password(path: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="a step could run twice"):
        Location.of(path)
    with pytest.raises(UnsupportedStoreError) as refused:
        Location.of("https://me:hunter2@host/x")
    assert "hunter2" not in str(refused.value) and "https://***@host/x" in str(refused.value)


def test_refused_path_is_opened_by_no_function(tmp_path: Path) -> None:
    template = tmp_path / "refs.json"
    template.write_text('{"version": 1, "refs": {"x": "{{ 1/0 }}"}}')
    for path in (f"reference://::{template}", f"zip://x::{template}", f"http://127.0.0.1:9/{template.name}"):
        calls = [partial(call, path) for call in (read_text, read_stored, list_files, file_system_at, open_file)]
        calls += [partial(call, [path]) for call in (read_many, existing_many)]
        for call in (*calls, partial(write_text, path, "x")):
            with pytest.raises((UnusablePathError, UnsupportedStoreError)):
                call()


_OPENERS = {"url_to_fs", "get_fs_token_paths", "open_files", "open_local", "get_mapper", "from_url"}


@pytest.mark.slow
def test_one_module_opens_file_systems() -> None:
    """``fsspec.filesystem`` takes a protocol instead of a path, but would also bypass the path check."""
    for file in PACKAGE.rglob("*.py"):
        if file == PACKAGE / "storage/filesystems.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = {node.attr} if isinstance(node, ast.Attribute) else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fsspec"):
                names = {alias.name for alias in node.names}
            assert not names & _OPENERS, f"{file.relative_to(PACKAGE)} uses {names & _OPENERS}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fsspec":
                assert node.attr not in ("open", "filesystem", "core"), f"{file.relative_to(PACKAGE)}: {node.attr}"


_CHECKING = {"storage/filesystems.py", "storage/paths.py"}
_JOINING = {
    "serialization/mirrors.py": "a config's mirrored path, which is below its prefix",
    "runtime/mirror_copies.py": "names that the store has listed, and the parts of a mirrored path",
    "storage/copying.py": "names that the store has listed, which the caller has checked",
    "cli/experiments/plan.py": "names that the store has listed",
    "plans/estimates.py": "names that the store has listed",
    "plans/reasons.py": "names that the store has listed",
    "records/adoption.py": "names that the store has listed, for its own file system",
    "storage/trees.py": "names that the store has listed, for its own file system",
    "records/discovery.py": "names that the store has listed",
    "records/pins.py": "a digest, and names that the store has listed",
    "records/cleanup.py": "names that the store has listed, for its own file system",
    "records/info_files.py": "the DAG's id, and a digest",
    "records/lease.py": "the names of records",
    "runtime/driver/child.py": "constant names",
    "runtime/driver/pod_step.py": "names that the store has listed, and the step's own globs",
    "steps/config_walk.py": "a config's paths for its own function",
    "steps/paths.py": "names and paths of steps, which `plans.places.step_places` checks",
    "steps/placeholders.py": "a config's paths for its own function",
}
"""Files that join paths from parts that are no constants, each with the source of the parts."""


def _is_plain(part: ast.expr) -> bool:
    """Return whether a path part is a constant, by value or name, or ``attempts`` makes it of numbers."""
    match part:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
    return False


@pytest.mark.slow
def test_only_listed_modules_join_paths_with_variable_parts() -> None:
    joins: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        name = str(file.relative_to(PACKAGE))
        if name.startswith("rehearsal/") or name in _CHECKING or name == "records/attempts.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "posixpath.join":
                continue
            if not all(map(_is_plain, node.args[1:])):
                joins.add(name)
    assert joins == _JOINING.keys(), joins ^ _JOINING.keys()
