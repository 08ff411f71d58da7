"""Harnesses by name, and what each is given and gives back.

The module of a harness has two functions. ``check(run)`` refuses what it finds before a model is served, and returns
what ``run`` needs of its work, with the harness's ``version``. ``run(run)`` measures, and returns a result for each
task, also a failed one. A harness without a served model has ``evaluate(config)`` instead.
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
    from tradewind.serving.gateway import Gateway


@dataclass(frozen=True)
class HarnessRun:
    """What a harness is given.

    Attributes:
        config: The evaluation's config.
        work_dir: Local folder for its files, which are kept under the harness's name in the output.
        model: The model's name in the API.
        model_dir: Local folder with the model's config and tokenizer; None if they are unknown.
        max_context: Tokens of a prompt with its answer at most; None if that is unknown.
        judge_model: The judge's name in its API; empty without one.
        address: Base URL of the served model on this host, which takes any key; empty for ``check``.
        judge_address: Base URL of the judge on this host; empty without one.
        gateway: The gateway behind ``address``: how many requests are answered, and whether the server is lost.
        judge_gateway: That behind ``judge_address``; None without one.
        checked: What ``check`` returned.
        log: Prints a line for the user.
    """

    config: EvaluationConfig
    work_dir: str
    model: str
    model_dir: str | None = None
    max_context: int | None = None
    judge_model: str = ""
    address: str = ""
    judge_address: str = ""
    gateway: Gateway | None = None
    judge_gateway: Gateway | None = None
    checked: Any = None
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

    @property
    def folder(self) -> str:
        """Return the folder of its own files in the output."""
        return self.module.rpartition(".")[2]

    def evaluate(self, config: EvaluationConfig) -> dict[str, Any]:
        """Measure without a served model; return status and scores."""
        result: dict[str, Any] = importlib.import_module(self.module).evaluate(config)
        return result

    def check(self, run: HarnessRun) -> Any:
        """Refuse what the harness cannot measure, before a model is served; return what ``run`` takes as ``checked``.

        Its ``version`` is the harness's. If it has a ``close()``, that is called at the end.

        Raises:
            ValueError: With the field.
        """
        return importlib.import_module(self.module).check(run)

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
