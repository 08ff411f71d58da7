"""Harnesses by name, and what each is given and gives back.

The module of a harness has two functions. ``check(config)`` refuses what it finds without a model, before one is
served. ``run(run)`` measures, and returns a result for each task, also for one that failed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.text import did_you_mean

if TYPE_CHECKING:
    from tradewind.evaluation.config import EvaluationConfig
    from tradewind.evaluation.results import TaskResult


@dataclass(frozen=True)
class HarnessRun:
    """What a harness is given.

    Attributes:
        config: The evaluation's config.
        work_dir: Local folder for its files, which are kept under the harness's name in the output.
        address: Base URL of the served model on this host, without a key; empty for a harness that needs none.
        model: The model's name there.
        model_dir: Local folder with the model's config and tokenizer, but no weights.
        judge_address: Base URL of the judge on this host; empty without one.
        judge_model: The judge's name there.
        log: Prints a line for the user.
    """

    config: EvaluationConfig
    work_dir: str
    address: str
    model: str
    model_dir: str
    judge_address: str = ""
    judge_model: str = ""
    log: Callable[[str], None] = print


@dataclass(frozen=True)
class Harness:
    """A harness.

    Attributes:
        module: Module with ``check`` and ``run``.
        served: Whether it sends requests to a served model; else it loads the model itself.
    """

    module: str
    served: bool = True

    def check(self, config: EvaluationConfig) -> None:
        """Refuse what the harness cannot measure; raises ``ValueError`` with the field."""
        importlib.import_module(self.module).check(config)

    def run(self, run: HarnessRun) -> list[TaskResult]:
        """Measure."""
        results: list[TaskResult] = importlib.import_module(self.module).run(run)
        return results


LEVANTER_HARNESS: Final = "levanter_lm_evaluation_harness"
HARNESSES: Final[Mapping[str, Harness]] = {
    "lm_evaluation_harness": Harness("tradewind.evaluation.lm_eval"),
    LEVANTER_HARNESS: Harness("tradewind.evaluation.levanter_harness", served=False),
    "helm": Harness("tradewind.evaluation.helm"),
    "alpaca": Harness("tradewind.evaluation.alpaca_eval"),
}
"""Marin's name of a harness → the harness."""


def harness_of(evaluator: Any) -> Harness:
    """Return the harness; raises ``ValueError`` with the known ones."""
    if evaluator not in HARNESSES:
        raise ValueError(f"evaluator={evaluator!r} is no harness; {did_you_mean(str(evaluator), HARNESSES)}")
    return HARNESSES[evaluator]
