"""Repairs that a test kills, or freezes and thaws after another repair has finished, at each step.

The repair loses no slice, creates none twice, deletes no healthy slice and leaves no permanent records.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cloud_tpu.cloud import TpuEnvironment
from tests.cloud_tpu.repair.processes import HOLD_S, STALE_S
from tradewind.cloud_tpu.repair.records import KEEP_S

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
MAX_STEPS = 60


@contextmanager
def processes(env: TpuEnvironment) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.cloud_tpu.repair.processes", env.cloud.url, str(env.folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=REPOSITORY, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.stdin.close()


def read_report(process: subprocess.Popen[str]) -> tuple[str, int]:
    assert process.stdout is not None
    word, number = process.stdout.readline().split()
    return word, int(number)


def repair_all(env: TpuEnvironment) -> None:
    lock = env.lock(hold_s=HOLD_S, stale_s=STALE_S)
    for _ in range(100):
        if env.repair(lock=lock).run_once().is_well:
            return
        env.now += 100.0
    raise AssertionError("the slices do not come back")


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP], ids=lambda one: str(one.name))
def test_repair_may_be_killed_or_frozen_at_any_step(env: TpuEnvironment, what: signal.Signals) -> None:
    env.create("slice-a")
    with processes(env) as process:
        assert process.stdin is not None
        for step in range(1, MAX_STEPS):
            env.preempt("slice-a")
            before = len(env.calls("CreateNode")), len(env.calls("DeleteNode"))
            process.stdin.write(f"{step} {what.name}\n")
            process.stdin.flush()
            word, number = read_report(process)
            repair_all(env)
            identity = env.api.node("slice-a").identity
            if word == "stopped":
                os.kill(number, signal.SIGCONT)
                assert read_report(process) == ("ended", 0)
            repair_all(env)
            assert env.api.node("slice-a").identity == identity, f"deleted while it worked, frozen at step {step}"
            assert (len(env.calls("CreateNode")), len(env.calls("DeleteNode"))) == (before[0] + 1, before[1] + 1)
            if (word, number) == ("ended", 0):
                break
            env.now += KEEP_S + 1.0
            repair_all(env)
            assert not list(env.folder.glob("deleted-*")), f"a record is left, {what.name} at step {step}"
        else:
            raise AssertionError("a pass has more steps than are tried")
    assert step > 15, "the steps were not counted"
