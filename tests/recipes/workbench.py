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
from tradewind.recipes.metrics.file import read_metrics


def stored_array(checkpoint: str | Path, name: str) -> np.ndarray:
    """Return an array of a Levanter checkpoint, for example ``opt_state/count``."""
    base = {"driver": "ocdbt", "base": f"file://{checkpoint}", "path": f"{name}/"}
    return np.asarray(tensorstore.open({"driver": "zarr3", "kvstore": base}).result().read().result())


def wait_for(condition: Callable[[], bool], program: PreparedProgram, what: str) -> None:
    """Wait until the condition holds; fail if the program ends first."""
    until(lambda: condition() or program.poll() is not None, what, pause_s=0.01)
    assert program.poll() is None, f"the program ended before {what}"


class Workbench:
    def __init__(self, root: Path, python: PreparedPython) -> None:
        self.root = root
        self.python = python

    def run(self, code: str, *arguments: str, exit_code: int = 0, **more: str) -> list[str]:
        env = {name: value for name, value in os.environ.items() if name not in ("RUN_ID", "WANDB_API_KEY")}
        process = self.python.start(
            code, str(self.root), *arguments, env=env | {"HOME": str(self.root), "HF_HUB_OFFLINE": "1"} | more
        )
        try:
            out, errors = process.communicate()
        finally:
            process.kill()
        assert process.returncode == exit_code, errors[-3000:]
        return out.splitlines()

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "out" / name / "result.json").read_text())
        return found

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return read_metrics(str(self.root / "out" / name / "metrics.jsonl"))
