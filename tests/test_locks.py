"""The locks contain only checked packages: every pin has hashes, and no other lines exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.check_lock import (
    LM_EVAL,
    declared,
    every_problem,
    flaws,
    image_problems,
    locked_extras,
    locks,
    main,
    peer_problems,
    pins,
    problems,
)  # fmt: skip

HASH = f"--hash=sha256:{'0' * 64}"
PROJECT = {"project": {"name": "us", "dependencies": ["a>=1"], "optional-dependencies": {"x": ["us[y]", "b"]}}}
SHARED = "".join(f"{name}==1 {HASH}\n" for name in ("apache-airflow", "apache-airflow-task-sdk", "ray"))


def requirements() -> list[Requirement]:
    return [*declared(PROJECT, "3.11", ["x"])]


def test_locks_of_this_repository_have_no_problems() -> None:
    assert main() == 0
    assert len([*(Path(__file__).parents[1] / "benchmarks" / "peers").glob("*.lock")]) == 2


def test_hashes_over_several_lines_are_read() -> None:
    lock = f"a==1.2 \\\n    {HASH} \\\n    {HASH}\nb[c]==3 ; python_version > '3' \\\n    {HASH}\n"
    assert pins(lock) == {"a": "1.2", "b": "3"}
    assert [*problems(requirements(), lock)] == []


A, B = f"a==1 {HASH}\n", f"b==1 {HASH}\n"


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        (f"{A}b==1\n", "b==1 has no hash"),
        (f"{A}b==1 --hash=md5:{'0' * 32}\n", "b==1 has no hash"),
        (f"{A}b==1 --hash=sha256:0\n", "b==1 has no hash"),
        (f"--index-url x\n{A}{B}", "option line: --index-url x"),
        (f"{A}{B}c @ x.whl {HASH}\n", "no pin: c @ x.whl"),
        (f"{A}{B}c @ https://x.example/c==1.whl {HASH}\n", "no pin: c @ https://x.example/c==1.whl"),
        (f"{A}{B}https://x.example/c?==1 {HASH}\n", "no pin: https://x.example/c?==1"),
        (f" --index-url https://x.example?a==1 {HASH}\n", "option line: --index-url https://x.example?a==1"),
        (f"a==1.* {HASH}\n{B}", "no pin: a==1.*"),
        (f"{A}b==1 {HASH} --hash=md5:{'0' * 32}\n", "b==1 has no hash of SHA-256 alone"),
        (f"a==0.1 {HASH}\n{B}", "a>=1 is pinned to 0.1"),
        (A, "b has no pin"),
    ],
)
def test_incomplete_lock_is_refused(lock: str, problem: str) -> None:
    assert problem in [*problems(requirements(), lock)]


def test_marked_requirement_is_needed_in_lock_of_its_python_only() -> None:
    project = {"project": {"name": "us", "dependencies": ["a; python_version>='3.12'"], "optional-dependencies": {}}}
    assert [*problems(declared(project, "3.11", []), "")] == []
    assert [*problems(declared(project, "3.12", []), "")] == ['a; python_version >= "3.12" has no pin']


def test_tools_and_separate_requirements_of_one_test_are_locked(tmp_path: Path) -> None:
    classifiers = '["Programming Language :: Python :: 3.11"]'
    project = f'[project]\nname = "us"\nclassifiers = {classifiers}\ndependencies = []\noptional-dependencies = {{}}\n'
    groups = '[dependency-groups]\nall = ["us[x]", {include-group = "test"}]\ntest = ["tool"]\n'
    (tmp_path / "pyproject.toml").write_text(project + groups)
    (tmp_path / "requirements.lock").touch()
    source = tmp_path / LM_EVAL
    source.parent.mkdir(parents=True)
    source.write_text("# apart\na<2\nb\n")
    lock = LM_EVAL.with_suffix(".lock")
    assert [*every_problem(tmp_path)] == ["requirements.lock: tool has no pin", f"{lock} is missing"]
    (tmp_path / "requirements.lock").write_text(f"tool==1 {HASH}\n")
    (tmp_path / lock).write_text(f"a==2 {HASH}\nb==1\n")
    assert [*every_problem(tmp_path)] == [f"{lock}: a<2 is pinned to 2", f"{lock}: b==1 has no hash"]


def test_each_python_of_the_classifiers_has_a_lock(tmp_path: Path) -> None:
    classifiers = [f"Programming Language :: Python :: {version}" for version in ("3", "3.12", "3.9", "3.10")]
    names = ["requirements.lock", "locks/3.10.lock", "locks/3.12.lock"]
    (tmp_path / "pyproject.toml").write_text(
        f"[project]\nname = 'us'\ndependencies = ['a']\nclassifiers = {classifiers}\noptional-dependencies = {{}}\n"
    )
    assert [*map(str, locks(tmp_path).values())] == names

    (tmp_path / "locks").mkdir()
    (tmp_path / "requirements.lock").write_text(f"a==1 {HASH}\n")
    (tmp_path / "locks" / "3.10.lock").write_text("a==1\n")
    assert [*every_problem(tmp_path)] == ["locks/3.10.lock: a==1 has no hash", "locks/3.12.lock is missing"]

    (tmp_path / "locks" / "3.13.lock").write_text("")
    assert [*every_problem(tmp_path)][-1] == "locks/3.13.lock: a has no pin"


def test_peer_lock_has_same_airflow_and_ray() -> None:
    assert [*peer_problems(SHARED, SHARED)] == []
    assert [*peer_problems(SHARED.replace("ray==1", "ray==2"), SHARED)] == [
        "ray is pinned to 2, and in requirements.lock to 1"
    ]
    assert [*flaws("ray==1\n")] == ["ray==1 has no hash"]


IMAGES = {
    "project": {
        "name": "us",
        "dependencies": ["ray"],
        "optional-dependencies": {"train": ["a"], "tpu": ["us[train]", "chips>=2"], "vllm": ["server"]},
    },
    "build-system": {"requires": ["builder>=2"]},
    "tool": {"tradewind": {"images": {"tpu": ["tpu"], "vllm": ["vllm"]}}},
}


def test_image_extra_is_needed_in_lock_of_its_image_only() -> None:
    assert locked_extras(IMAGES) == ["train"]
    assert [*image_problems(IMAGES, "tpu", f"ray==1 {HASH}\nchips==1 {HASH}\n", f"ray==1 {HASH}\n", "3.11")] == [
        "chips>=2 is pinned to 1",
        "a has no pin",
    ]


def test_image_pins_tested_versions_and_vllm_pins_tested_ray() -> None:
    ours = f"ray==1 {HASH}\na==1 {HASH}\n"
    theirs = f"ray==2 {HASH}\na==2 {HASH}\nchips==2 {HASH}\nserver==1 {HASH}\n"
    assert [*image_problems(IMAGES, "tpu", theirs, ours, "3.11")] == [
        "a is pinned to 2, and in requirements.lock to 1",
        "ray is pinned to 2, and in requirements.lock to 1",
    ]
    assert [*image_problems(IMAGES, "vllm", theirs, ours, "3.11")] == [
        "ray is pinned to 2, and in requirements.lock to 1"
    ]


def test_each_image_and_wheel_build_have_a_lock(tmp_path: Path) -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(project)
    missing = [problem for problem in every_problem(tmp_path) if problem.endswith("is missing")]
    assert missing[-5:] == [
        f"docker/requirements-{name}.lock is missing" for name in ("tpu", "cuda", "vllm", "airflow", "build")
    ]
