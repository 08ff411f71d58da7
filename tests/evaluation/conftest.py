"""A tiny engine, its export, and lm-eval on the path, for evaluations without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from tests.serving.exports import tiny_export
from tests.serving.tiny_engine import log_probability
from tests.support.waiting import until
from tradewind.evaluation.config import EvaluationConfig, ServedAddress
from tradewind.evaluation.tasks import EvalTaskConfig
from tradewind.rehearsal.local.processes import free_port

REPOSITORY: Final = Path(__file__).parents[2]
LM_EVAL: Final = Path(sys.prefix, "lm-eval")
"""Folder where ``make init`` installs the harness."""
TASKS: Final = Path(__file__).with_name("tasks")
COLORS: Final = ("sky", "grass", "snow", "coal", "sun", "rose")
CHOICES: Final = (" blue", " green", " white")
EVALS: Final = (
    EvalTaskConfig("colors", 0),
    EvalTaskConfig("colors", 1),
    EvalTaskConfig("words", 0),
    EvalTaskConfig("both", 0),
)


def lm_eval_config(address: str, export: Path, output: Path, *evals: EvalTaskConfig, **more: Any) -> EvaluationConfig:
    """Return the config of an evaluation of tasks in ``tasks`` with lm-eval."""
    given = {"serving": ServedAddress(address, "tiny"), "task_path": str(TASKS), "num_concurrent": 4} | more
    return EvaluationConfig(
        "lm_evaluation_harness", "tiny", str(output), evals=evals or EVALS, model_path=str(export), **given
    )


def expected_accuracy(export: Path) -> float:
    """Return how often the right choice of ``colors`` has the largest probability in the tiny engine."""
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(str(export)).encode
    right = 0
    for number, thing in enumerate(COLORS):
        question = f"The color of {thing}, number {number}, is"
        begin, sums = len(encode(question)), []
        for choice in CHOICES:
            tokens = [f" {token}" for token in encode(question + choice)]
            after = range(begin, len(tokens))
            sums.append(sum(log_probability("".join(tokens[:place]), tokens[place]) for place in after))
        right += sums.index(max(sums)) == number % 3
    return right / len(COLORS)


@dataclass
class Engine:
    """A process of ``tiny_engine``, which can be killed and started again at its port."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def log(self) -> Path:
        return self.folder / "engine.jsonl"

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, *self.command()])
        until(self._is_up, "the engine")

    def command(self) -> list[str]:
        """Return what Python runs."""
        program = REPOSITORY / "tests/serving/tiny_engine.py"
        return [str(program), "--port", str(self.port), "--log", str(self.log), *self.options]

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def requests(self, event: str) -> list[Any]:
        """Return the prompts of requests that have begun, or that were answered."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [given["prompt"] for line in lines if (given := json.loads(line))["event"] == event]

    def _is_up(self) -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/health", timeout=5).ok
        except requests.RequestException:  # it compiles before it listens, or while it does
            return False


@dataclass
class LevanterEngine(Engine):
    """Levanter's server of a model."""

    model: str = ""

    def command(self) -> list[str]:
        program = ["-m", "tradewind.serving.levanter_server", "--served-name", "tiny"]
        return [*program, "--model", self.model, "--port", str(self.port)]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_export(tmp_path_factory.mktemp("export"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    engine.start()
    yield engine
    engine.kill()


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make lm-eval importable here and in the processes that this one starts."""
    monkeypatch.syspath_prepend(str(LM_EVAL))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(LM_EVAL), str(REPOSITORY)]))
