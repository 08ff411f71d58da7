"""The evaluation harness tasks of Marin's trainings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tradewind.marin.legacy.classes import builder

__all__ = ["CORE_TASKS", "MMLU_TASKS", "harness"]


def _task(name: str, num_fewshot: int, task_alias: str | None = None) -> Any:
    made = builder().find("marin.evaluation.evaluation_config.EvalTaskConfig")
    return made(name, num_fewshot, task_alias=task_alias)


CORE_TASKS: Final = (
    _task("agieval_lsat_ar", 3),
    _task("arc_easy", 10),
    _task("arc_challenge", 10),
    _task("boolq", 10),
    _task("commonsense_qa", 10),
    _task("copa", 0),
    _task("hellaswag", 0, "hellaswag_0shot"),
    _task("hellaswag", 10, "hellaswag_10shot"),
    _task("lambada_openai", 0),
    _task("openbookqa", 0),
    _task("piqa", 10),
    _task("wsc273", 0),
    _task("winogrande", 0),
)
"""From page 43 of the DCLM paper, https://arxiv.org/pdf/2406.11794."""
MMLU_TASKS: Final = (_task("mmlu", 0, "mmlu_0shot"), _task("mmlu", 5, "mmlu_5shot"))


def harness(tasks: Sequence[Any]) -> Any:
    """Return Levanter's config that runs these tasks during a training; None without tasks."""
    find = builder().find
    made = find("levanter.eval_harness.TaskConfig")
    specs = [made(task=task.name, num_fewshot=task.num_fewshot, task_alias=task.task_alias) for task in tasks]
    return find("levanter.eval_harness.LmEvalHarnessConfig")(task_spec=specs) if specs else None
