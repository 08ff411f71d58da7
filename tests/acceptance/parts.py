"""Step functions of the acceptance tests, and a way to run their steps in separate drivers."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.waiting import until
from tradewind.local.run import run_experiment
from tradewind.plans.selection import Selection
from tradewind.serialization.references import CodeFolder
from tradewind.steps import ExecutorStep, InputName, this_output_path, versioned

REPOSITORY = Path(__file__).parents[2]
CODE = CodeFolder(REPOSITORY)
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Config:
    """Config of Marin's own tests (an input, an output, a versioned and a plain value) and a log."""

    input_path: Any = None
    output_path: Any = dataclasses.field(default_factory=this_output_path)
    n: Any = None
    m: Any = None
    log: str = ""


@dataclass(frozen=True)
class Score:
    value: float


@dataclass(frozen=True)
class Report:
    """Result that contains another dataclass."""

    name: str
    score: Score


def note(config: Config) -> None:
    """Append the config to the log in one write."""
    with open(config.log, "a") as log:
        log.write(json.dumps(dataclasses.asdict(config)) + "\n")


def work(config: Config) -> dict[str, Any]:
    note(config)
    return {"n": config.n}


def report(config: Config) -> Report:
    return Report("accuracy", Score(0.5))


def work_a_while(config: Config) -> None:
    note(config)
    time.sleep(1.0)


def fail_until_allowed(config: Config) -> None:
    """Fail until a file with the log's name and ``.allowed`` exists."""
    note(config)
    if not Path(config.log + ".allowed").exists():
        raise ValueError("not allowed yet")


def kill_the_driver(config: Config) -> None:
    """Kill the driver, which is the parent of this process's guard, and all its descendants."""
    note(config)
    guard = psutil.Process().parent()
    assert guard is not None
    os.kill(guard.ppid(), signal.SIGKILL)
    time.sleep(TIMEOUT_S)


def meet(config: Config) -> None:
    """Return once as many steps as ``m`` says run at the same time."""
    note(config)
    until(lambda: len(calls(config.log)) >= config.m, "the other steps")


def calls(log: str | Path) -> list[dict[str, Any]]:
    """Return the configs of all function calls, in order."""
    path = Path(log)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ran(log: str | Path) -> list[Any]:
    """Return the ``n`` of each call, which identifies the steps of a test."""
    return [call["n"] for call in calls(log)]


def step(name: str, fn: Any = work, *, n: Any = None, **fields: Any) -> ExecutorStep:
    """Return a step with a versioned ``n``."""
    return ExecutorStep(name, fn, Config(n=versioned(n), **fields))


def run(steps: Sequence[ExecutorStep | InputName], prefix: Path, **options: Any) -> dict[ExecutorStep, str]:
    """Run the steps as a script does; options unknown to ``run_experiment`` select steps."""
    names = ("max_concurrent", "dry_run", "caller")
    engine = {name: options.pop(name) for name in names if name in options}
    return run_experiment(steps, str(prefix), CODE, selection=Selection(**options), **engine)
