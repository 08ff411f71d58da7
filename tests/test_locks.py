"""What is installed is what was looked at: every pin has hashes, and nothing else stands in a lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_lock import flaws, main, peer_problems, pins, problems

HASH = f"--hash=sha256:{'0' * 64}"
PROJECT = {"project": {"name": "us", "dependencies": ["a>=1"], "optional-dependencies": {"x": ["us[y]", "b"]}}}
SHARED = "".join(f"{name}==1 {HASH}\n" for name in ("apache-airflow", "apache-airflow-task-sdk", "ray"))


def test_the_locks_of_this_repository_are_in_order() -> None:
    assert main() == 0
    assert len([*(Path(__file__).parents[1] / "benchmarks" / "peers").glob("*.lock")]) == 2


def test_a_lock_with_hashes_over_several_lines_is_read() -> None:
    lock = f"a==1.2 \\\n    {HASH} \\\n    {HASH}\nb[c]==3 ; python_version > '3' \\\n    {HASH}\n"
    assert pins(lock) == {"a": "1.2", "b": "3"}
    assert [*problems(PROJECT, lock)] == []


@pytest.mark.parametrize(
    ("lock", "problem"),
    [
        (f"a==1 {HASH}\nb==1\n", "b==1 has no hash"),
        (f"a==1 {HASH}\nb==1 --hash=md5:{'0' * 32}\n", "b==1 has no hash"),
        (f"a==1 {HASH}\nb==1 --hash=sha256:0\n", "b==1 has no hash"),
        (f"--index-url x\na==1 {HASH}\nb==1 {HASH}\n", "option line: --index-url x"),
        (f"a==1 {HASH}\nb==1 {HASH}\nc @ x.whl {HASH}\n", "no pin: c @ x.whl"),
        (
            f"a==1 {HASH}\nb==1 {HASH}\nc @ https://x.example/c==1.whl {HASH}\n",
            "no pin: c @ https://x.example/c==1.whl",
        ),
        (f"a==1 {HASH}\nb==1 {HASH}\nhttps://x.example/c?==1 {HASH}\n", "no pin: https://x.example/c?==1"),
        (f" --index-url https://x.example?a==1 {HASH}\n", "option line: --index-url https://x.example?a==1"),
        (f"a==1.* {HASH}\nb==1 {HASH}\n", "no pin: a==1.*"),
        (f"a==1 {HASH}\nb==1 {HASH} --hash=md5:{'0' * 32}\n", "b==1 has no hash of SHA-256 alone"),
        (f"a==0.1 {HASH}\nb==1 {HASH}\n", "a>=1 is pinned to 0.1"),
        (f"a==1 {HASH}\n", "b has no pin"),
    ],
)
def test_a_lock_that_pins_too_little_is_refused(lock: str, problem: str) -> None:
    assert problem in [*problems(PROJECT, lock)]


def test_a_peer_is_locked_with_our_airflow_and_our_ray() -> None:
    assert [*peer_problems(SHARED, SHARED)] == []
    assert [*peer_problems(SHARED.replace("ray==1", "ray==2"), SHARED)] == [
        "ray is pinned to 2, and in requirements.lock to 1"
    ]
    assert [*flaws("ray==1\n")] == ["ray==1 has no hash"]
