"""A folder with tokenizers and token caches, and programs that train from them as hosts do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from tests.support.fork_server import PreparedProgram, PreparedPython
from tests.support.waiting import until
from tradewind.recipes.metrics.file import read_metrics, series
from tradewind.runtime.pods.on_host.preemption_notice import NOTICE_VARIABLE, Notice, write_notice
from tradewind.runtime.pods.verdicts import NOTICED


def stored_array(checkpoint: str | Path, name: str) -> np.ndarray:
    """Return an array of a Levanter checkpoint, for example ``opt_state/count``."""
    base = {"driver": "ocdbt", "base": f"file://{checkpoint}", "path": f"{name}/"}
    return np.asarray(tensorstore.open({"driver": "zarr3", "kvstore": base}).result().read().result())


def wait_for(condition: Callable[[], bool], program: PreparedProgram, what: str) -> None:
    """Wait until the condition holds; fail if the program ends first."""
    until(lambda: condition() or program.poll() is not None, what, pause_s=0.01)
    assert program.poll() is None, f"the program ended before {what}"


def lines_of(program: PreparedProgram, exit_code: int = 0) -> list[str]:
    """Wait for the program's end; return the lines that it printed."""
    try:
        out, errors = program.communicate()
    finally:
        program.kill()
    assert program.returncode == exit_code, errors[-3000:]
    return out.splitlines()


class Workbench:
    def __init__(self, root: Path, python: PreparedPython) -> None:
        self.root = root
        self.python = python

        self.out = root / "out"

    def start(self, code: str, *arguments: str, **variables: str) -> PreparedProgram:
        """Start a program; its first argument is the folder, which is also its ``HOME``."""
        env = {name: value for name, value in os.environ.items() if name not in ("RUN_ID", "WANDB_API_KEY")}
        env |= {"HOME": str(self.root), "HF_HUB_OFFLINE": "1"} | variables
        return self.python.start(code, str(self.root), *arguments, env=env)

    def run(self, code: str, *arguments: str, exit_code: int = 0, **variables: str) -> list[str]:
        """Run a program; return the lines that it prints."""
        return lines_of(self.start(code, *arguments, **variables), exit_code)

    def run_noticed(self, code: str, *arguments: str, **variables: str) -> list[str]:
        """Run a program that has a preemption notice from its start, so that it saves a checkpoint and exits."""
        notice = self.root / "notice.json"
        write_notice(str(notice), Notice(4e9, "maintenance"))
        printed = self.run(code, *arguments, exit_code=NOTICED, **variables, **{NOTICE_VARIABLE: str(notice)})
        notice.unlink()
        return printed

    def check_noticed_training(self, code: str, steps: int, *measures: str) -> None:
        """Check that a training that is noticed and resumed ends like the one named ``whole``."""
        assert self.run_noticed(code, "cut")[-1].startswith("step 3 is saved, because of a notice")
        assert f"continues after step 3/{steps}" in self.run(code, "cut")
        for measure in measures:
            assert self.losses("cut", measure) == self.losses("whole", measure) != ([], [])
        placed = ("run_id", "checkpoint", "export")
        cut, whole = ({k: v for k, v in self.result(name).items() if k not in placed} for name in ("cut", "whole"))
        assert cut == whole
        assert self.run(code, "cut") == [], "an ended training is not repeated"

    def check_answers(self, printed: list[str], expected: dict[str, str]) -> None:
        """Check that each case of ``PREFLIGHT`` was answered by a line that begins as expected."""
        answers = dict(json.loads(line) for line in printed if line.startswith('["'))
        assert answers.keys() == expected.keys()
        for name, beginning in expected.items():
            assert answers[name].startswith(beginning.replace("ROOT", str(self.root))), (name, answers[name])

    def result(self, name: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.out / name / "result.json").read_text())
        return result

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return read_metrics(str(self.out / name / "metrics.jsonl"))

    def losses(self, name: str, measure: str = "train/loss") -> tuple[list[int], list[float]]:
        return series(self.metrics(name), measure)
