"""A host's answer to a push is untrusted input.

Only a complete answer counts as success.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.killed_push import NAMES, found, write
from tradewind.fleet import push_env_on_host
from tradewind.fleet.access.ssh import HostResult
from tradewind.fleet.push_env import HostPush, PushState

FULL = {"ray": True, "changed": ["A"], "removed": [], "restart": ["A"]}


def pushed(told: object, code: int | None = 0, *, is_dry: bool = False, why: str = "") -> HostPush:
    return HostPush.of(HostResult("one:0", code, why), json.dumps(told), "bash: no python3", is_dry=is_dry)


def test_a_full_answer_says_what_was_done_or_would_be() -> None:
    assert pushed(FULL) == HostPush("one:0", PushState.WRITTEN, ("A",), (), ("A",))
    assert pushed(FULL, is_dry=True).state is PushState.WOULD_WRITE
    assert pushed({**FULL, "changed": []}).state is PushState.SAME
    assert pushed({"ray": False}) == HostPush("one:0", PushState.NO_RAY)


@pytest.mark.parametrize(
    "told", [{}, [], "text", None, 5, {"ray": 1}, {**FULL, "changed": "A"}, {**FULL, "restart": [1]}], ids=str
)
def test_anything_else_is_a_failure(told: object) -> None:
    assert pushed(told) == HostPush("one:0", PushState.FAILED, why="the command there ended with 0: bash: no python3")


def test_an_answer_that_is_nested_without_end_is_a_failure() -> None:
    assert HostPush.of(HostResult("one:0", 0, ""), "[" * 200_000, "", is_dry=False).state is PushState.FAILED


def test_a_host_that_ended_badly_or_was_not_reached_says_why() -> None:
    assert pushed(FULL, 1).why == "the command there ended with 1: bash: no python3"
    assert pushed(FULL, None, why="Cluster here: it did not answer.").why == "Cluster here: it did not answer."
    assert pushed({"ray": True, "why": "x" * 5000}).why == "x" * 400
    assert not PushState.NO_RAY.is_bad and PushState.FAILED.is_bad


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_killed_env_push_leaves_all_old_or_all_new_values(kernel: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fleet.killed_push", str(tmp_path), kernel]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    seen = [json.loads(line)[0] for line in lines]
    before, after = ["old"] * len(NAMES), ["new"] * len(NAMES)
    assert seen[0] == before and seen[-1] == after
    assert all(values in (before, after) or (values is None and kernel == "old") for values in seen), seen


def test_a_folder_in_the_place_of_a_file_holds_up_nothing(tmp_path: Path) -> None:
    folder, aside = tmp_path / "environment", tmp_path / ".new-1"
    write(folder, "old")
    write(aside, "new")
    for name in ("B", "GONE"):
        (folder / name).unlink(missing_ok=True)
        (folder / name / "inner").mkdir(parents=True)
    told = push_env_on_host._compared({"is_dry": False, "secrets": dict.fromkeys(NAMES)}, str(folder), str(aside), [])
    assert (told["changed"], told["removed"]) == (list(NAMES), ["GONE"])
    assert found(folder) == ["new"] * len(NAMES) and sorted(os.listdir(folder)) == list(NAMES)
