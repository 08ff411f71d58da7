"""A stand-in for the Python of a harness: a shell script, so that tests of what surrounds it cost no Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.environments import HarnessEnvironment
from tradewind.evaluation.harnesses import HarnessRun
from tradewind.evaluation.tasks import EvalTaskConfig

RECORDED = Path(__file__).parent / "recorded"
"""Trimmed files of real runs."""
ADDRESS = "http://127.0.0.1:9/v1"


def harness_python(folder: Path, monkeypatch: pytest.MonkeyPatch, environment: HarnessEnvironment, script: str) -> Path:
    """Make a Python of the harness that runs ``script`` instead of a program, and name it in the variable."""
    python = folder / "stub"
    probe = f'if [ "$1" = -I ]; then echo 9.9; echo "{folder}/site/{environment.package}"; exit; fi'
    python.write_text(f"#!/bin/sh\n{probe}\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setenv(environment.variable, str(python))
    return python


def harness_run(evaluator: str, folder: Path, tasks: list[EvalTaskConfig] | None = None, **fields: Any) -> HarnessRun:
    """Return what a harness is given, for a model at an address where nobody answers."""
    config = EvaluationConfig(
        evaluator,
        model_name="m",
        evaluation_path=str(folder / "output"),
        evals=[EvalTaskConfig("simple_mcqa", 2)] if tasks is None else tasks,
        serving=ServedAddress(ADDRESS, "served"),
        **fields,
    )
    return HarnessRun(config, str(folder / "work"), "served", address=ADDRESS, log=lambda line: None)
