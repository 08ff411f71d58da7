"""lm-eval against a served model: scores, files, and what is refused before the model is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.conftest import TASKS, Engine
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.results import Status, read_record
from tradewind.evaluation.run import evaluate
from tradewind.evaluation.tasks import EvalTaskConfig

EVALS = [
    EvalTaskConfig("colors", 0),
    EvalTaskConfig("colors", 1),
    EvalTaskConfig("words", 0),
    EvalTaskConfig("both", 0),
]


def config(engine: Engine | str, export: Path, output: Path, *evals: EvalTaskConfig, **more: Any) -> EvaluationConfig:
    address = engine if isinstance(engine, str) else engine.address
    return EvaluationConfig(
        "lm_evaluation_harness",
        "tiny",
        str(output),
        evals=evals or EVALS,
        model_path=str(export),
        **{"serving": ServedAddress(address, "tiny"), "task_path": str(TASKS), "num_concurrent": 4} | more,
    )


@pytest.mark.slow
def test_tasks_measured_and_written(
    engine: Engine, export: Path, tmp_path: Path, lm_eval: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 8 CPU seconds: what lm-eval asks and writes shows only in a run of it."""
    output = tmp_path / "out"
    result = evaluate(config(engine, export, output))
    record = read_record(str(output))
    print(capsys.readouterr().out)
    print(json.dumps(record.as_json(), indent=1))
    print(result)
    assert record.status is Status.SUCCEEDED
