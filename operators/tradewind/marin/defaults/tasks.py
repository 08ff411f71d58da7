"""Marin's tasks of evaluations and of trainings: Tradewind's lists, as values of Marin's class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tradewind.evaluation import tasks as lists
from tradewind.marin.legacy.classes import builder
from tradewind.text import truncated_repr

_made: Final = builder().find("marin.evaluation.evaluation_config.EvalTaskConfig")


def _marins(tasks: Iterable[lists.EvalTaskConfig]) -> tuple[Any, ...]:
    return tuple(_made(task.name, task.num_fewshot, task_alias=task.task_alias) for task in tasks)


CORE_TASKS: Final = _marins(lists.CORE_TASKS)
MMLU_TASKS: Final = _marins(lists.MMLU_TASKS)
MMLU_0_SHOT, MMLU_5_SHOT = MMLU_TASKS
(MMLU_PRO_5_SHOT,) = _marins([lists.MMLU_PRO_5_SHOT])
CORE_TASKS_PLUS_MMLU: Final = CORE_TASKS + MMLU_TASKS
CORE_TASKS_PLUS_LEADERBOARD: Final = _marins(lists.CORE_TASKS_PLUS_LEADERBOARD)
OPEN_LM_LEADERBOARD_MCQ: Final = _marins(lists.OPEN_LM_LEADERBOARD_MCQ)
OPEN_LM_LEADERBOARD_GEN: Final = _marins(lists.OPEN_LM_LEADERBOARD_GEN)
BASE_GENERATION_TASKS: Final = _marins(lists.BASE_GENERATION_TASKS)
KEY_GENERATION_TASKS: Final = _marins(lists.KEY_GENERATION_TASKS)
KEY_MULTIPLE_CHOICE_TASKS: Final = _marins(lists.KEY_MULTIPLE_CHOICE_TASKS)
REASONING_TASKS: Final = _marins(lists.REASONING_TASKS)
MATH_TASKS: Final = _marins(lists.MATH_TASKS)
LANGUAGE_TASKS: Final = _marins(lists.LANGUAGE_TASKS)
CODE_TASKS: Final = _marins(lists.CODE_TASKS)
MEDICAL_TASKS: Final = _marins(lists.MEDICAL_TASKS)
KNOWLEDGE_TASKS: Final = _marins(lists.KNOWLEDGE_TASKS)
EMOTIONAL_ETHICS_TASKS: Final = _marins(lists.EMOTIONAL_ETHICS_TASKS)
BIAS_SAFETY_TASKS: Final = _marins(lists.BIAS_SAFETY_TASKS)
ACTION_TASKS: Final = _marins(lists.ACTION_TASKS)
TRUTHFULNESS_TASKS: Final = _marins(lists.TRUTHFULNESS_TASKS)
SPECIALIZED_TASKS: Final = _marins(lists.SPECIALIZED_TASKS)


def convert_to_levanter_task_config(tasks: Sequence[Any]) -> list[Any]:
    """Return the tasks as Levanter's, for trainings."""
    made = builder().find("levanter.eval_harness.TaskConfig")
    return [made(task=task.name, num_fewshot=task.num_fewshot, task_alias=task.task_alias) for task in tasks]


def convert_to_task_metrics(tasks: Sequence[Any], metric: str) -> list[str]:
    """Return the names under which a training with these tasks logs their ``metric``.

    Raises:
        TypeError: One is no task.
        ValueError: There is none.
    """
    if not tasks:
        raise ValueError("tasks is empty, so there are no metrics: give tasks.")
    for task in tasks:
        if not isinstance(task, (_made, lists.EvalTaskConfig)):
            raise TypeError(f"tasks has {truncated_repr(task)}: give an EvalTaskConfig.")
    return [f"lm_eval/{task.task_alias or task.name}/{metric}" for task in tasks]


def harness(tasks: Sequence[Any]) -> Any:
    """Return Levanter's config that runs these tasks during a training; None without tasks."""
    specs = convert_to_levanter_task_config(tasks)
    return builder().find("levanter.eval_harness.LmEvalHarnessConfig")(task_spec=specs) if specs else None


__all__ = [name for name in lists.__all__ if name.isupper()]
__all__ += ["convert_to_levanter_task_config", "convert_to_task_metrics", "harness"]
