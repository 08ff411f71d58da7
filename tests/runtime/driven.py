"""Step functions with every kind of ending, and helpers that start drivers for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.claims import claimed, driver_arguments
from tests.support.waiting import limit_s, until
from tradewind.attempts.renewal import renewing_while_claimed
from tradewind.records.attempts import Attempt, attempt_path, read_attempt
from tradewind.records.lease import HEARTBEAT_S, Lease, Phase
from tradewind.records.lease_store import LeaseStore
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import step_spec
from tradewind.steps import AttemptLostError, ExecutorStep, ResolvedStep, resolve, this_output_path, versioned

REPOSITORY = Path(__file__).parents[2]
QUICK_S = 1.5
"""Heartbeat interval for tests that wait until a lease is stale."""
BRISK_S = 6.0
"""Heartbeat interval for tests that wait until a driver reads its lease.

It is longer than any delay that a busy machine causes.
"""


@dataclass(frozen=True)
class Config:
    output_path: Any
    value: Any = None
    folder: str | None = None


def returns(config: Config) -> dict[str, int]:
    return {"pid": os.getpid()}


def returns_an_object(config: Config) -> object:
    return object()


def raises(config: Config) -> None:
    raise ValueError("no good")


def dies(config: Config) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ends_without_error(config: Config) -> None:
    os._exit(1)  # as Ray ends a process that has lost the cluster's head


def is_lost(config: Config) -> None:
    raise AttemptLostError("the server is gone")


def exits(config: Config) -> None:
    sys.exit(3)


def hangs(config: Config) -> None:
    Path(config.folder or config.output_path, "pid").write_text(str(os.getpid()))
    signal.pause()


def hangs_beside_detached_writer(config: Config) -> None:
    """Start a writer with an empty environment, so the guard cannot find it by a variable."""
    writer = 'echo $$ > "$0"/writer; while :; do date >> "$0"/shard; sleep 0.05; done'
    subprocess.Popen(["sh", "-c", writer, str(config.output_path)], start_new_session=True, env={})
    hangs(config)


def writes_a_shard(config: Config) -> None:
    Path(config.output_path, "shard").write_text("whole")


def lists_its_files(config: Config) -> list[str]:
    names = sorted(path.name for path in Path(config.output_path).glob("*") if not path.name.startswith("."))
    Path(config.output_path, "checkpoint").write_text("half way")
    Path(config.output_path, "shard").write_text("half written")
    return names


def writes_files(config: Config, text: str = "of this attempt") -> None:
    for number in range(10):
        Path(config.output_path, str(number)).write_text(text)


def reruns_its_input(config: Config) -> None:
    assert config.folder is not None
    run(returns, Path(config.folder), withdraws=True)


def resolved_step(fn: Any, store: str, folder: str | None = None, resumable: tuple[str, ...] = ()) -> ResolvedStep:
    config = Config(this_output_path(), versioned(fn.__name__), folder)
    step = ExecutorStep("s", fn, config, resumable=resumable)
    return resolve([step], store).of(step)


def claim_step(step: ExecutorStep, store: Path, *mirrors: str) -> Attempt:
    resolved = resolve([step], str(store)).of(step)
    return claimed(resolved, step_spec(resolved, CodeFolder(REPOSITORY), mirrors))


def claim(step: ResolvedStep, heartbeat_s: float = HEARTBEAT_S, **fields: Any) -> Attempt:
    return claimed(step, step_spec(step, CodeFolder(REPOSITORY)), heartbeat_s=heartbeat_s, **fields)


def file_of(attempt: Attempt) -> str:
    return attempt_path(attempt.spec["output_path"], attempt.number)


def start(attempt: Attempt, fault: str = "", env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a driver with a fault of ``faulty_driver``, by default none."""
    module = ["tests.runtime.faulty_driver", fault] if fault else ["tradewind.runtime.run_step"]
    return subprocess.Popen(
        [sys.executable, "-m", *module, *driver_arguments(attempt)],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_renewed(attempt: Attempt, fault: str = "") -> subprocess.Popen[str]:
    """Start a driver and renew its lease until the driver takes the lease over, as its task does.

    Without renewal, a lease with a short heartbeat interval becomes stale while Python starts.
    """
    output_path = attempt.spec["output_path"]
    with renewing_while_claimed(output_path, attempt.job):
        started = start(attempt, fault)
        until(lambda: lease_of(output_path).phase is not Phase.CLAIMED or started.poll() is not None)
    return started


def finish(driver: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = driver.communicate(timeout=limit_s())
    return driver.returncode, text


def lease_of(output_path: str) -> Lease:
    held = LeaseStore(output_path).read()
    assert held is not None
    return held.lease


def run_attempt(attempt: Attempt, env: Mapping[str, str] | None = None) -> tuple[int, str, Attempt]:
    """Run a driver to its end; return its exit code, its output and the ended attempt."""
    code, text = finish(start(attempt, env=env))
    ended = read_attempt(file_of(attempt))
    assert ended is not None, text
    return code, text, ended


def run(fn: Any, store: Path, **fields: Any) -> tuple[int, str, str, Attempt]:
    attempt = claim(resolved_step(fn, str(store)), **fields)
    code, text, ended = run_attempt(attempt)
    return code, text, attempt.spec["output_path"], ended


def result_of(output_path: str) -> Any:
    return json.loads(Path(output_path, ".artifact.json").read_text())
