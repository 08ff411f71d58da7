"""A host's answer to a push is untrusted input: only a complete answer counts as success."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.killed_push import NAMES, read, write
from tradewind.fleet import push_env_on_host
from tradewind.fleet.access.ssh import HostResult
from tradewind.fleet.push_env import HostPush, PushState

FULL = {"ray": True, "changed": ["A"], "removed": [], "restart": ["A"]}


def push_of(answer: object, code: int | None = 0, *, is_dry: bool = False, why: str = "") -> HostPush:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return HostPush.of(HostResult("one:0", code, why), text, "bash: no python3", is_dry=is_dry)


def test_complete_answer_tells_the_state_of_a_push() -> None:
    assert push_of(FULL) == HostPush("one:0", PushState.WRITTEN, ("A",), (), ("A",))
    assert push_of(FULL, is_dry=True).state is PushState.WOULD_WRITE
    assert push_of({**FULL, "changed": []}).state is PushState.SAME
    assert push_of({"ray": False}) == HostPush("one:0", PushState.NO_RAY)
    assert not PushState.NO_RAY.is_bad and PushState.FAILED.is_bad


@pytest.mark.parametrize(
    "answer",
    [{}, [], '"text"', None, 5, {"ray": 1}, {**FULL, "changed": "A"}, {**FULL, "restart": [1]}, "[" * 200_000],
    ids=lambda answer: str(answer)[:40],
)
def test_any_other_answer_is_a_failure(answer: object) -> None:
    assert push_of(answer) == HostPush(
        "one:0", PushState.FAILED, why="the command there ended with 0: bash: no python3"
    )


def test_failed_or_unreachable_host_has_a_reason() -> None:
    assert push_of(FULL, 1).why == "the command there ended with 1: bash: no python3"
    assert push_of(FULL, None, why="Cluster here: it did not answer.").why == "Cluster here: it did not answer."
    assert push_of({"ray": True, "why": "x" * 5000}).why == "x" * 400


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_killed_env_push_leaves_all_old_or_all_new_values(kernel: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fleet.killed_push", str(tmp_path), kernel]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    seen = [json.loads(line)[0] for line in lines]
    before, after = ["old"] * len(NAMES), ["new"] * len(NAMES)
    assert seen[0] == before and seen[-1] == after
    assert all(values in (before, after) or (values is None and kernel == "old") for values in seen), seen


def test_folders_in_place_of_files_are_replaced(tmp_path: Path) -> None:
    folder, aside = tmp_path / "environment", tmp_path / ".new-1"
    write(folder, "old")
    write(aside, "new")
    for name in ("B", "GONE"):
        (folder / name).unlink(missing_ok=True)
        (folder / name / "inner").mkdir(parents=True)
    answer = push_env_on_host._compared({"is_dry": False, "secrets": dict.fromkeys(NAMES)}, str(folder), str(aside), [])
    assert (answer["changed"], answer["removed"]) == (list(NAMES), ["GONE"])
    assert read(folder) == ["new"] * len(NAMES) and sorted(os.listdir(folder)) == list(NAMES)
