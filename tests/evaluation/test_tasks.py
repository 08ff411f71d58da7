"""Tasks of evaluations: bad ones are refused by name; the lists are pinned by the paths of Marin's evaluations."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.evaluation import tasks
from tradewind.evaluation.tasks import CORE_TASKS, MMLU_5_SHOT, MMLU_PRO_5_SHOT, EvalTaskConfig, check_tasks, labels

ARC = EvalTaskConfig("arc_easy", 10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("",), r"The name .* is '', which is no name"),
        (("a\nb",), "which is no name"),
        ((None,), "The name .* is None"),
        (("x" * 201,), "which is no name"),
        (("arc_easy", -1), "Task 'arc_easy': num_fewshot is -1: give a number of examples"),
        (("arc_easy", True), "num_fewshot is True"),
        (("arc_easy", 0, " "), "The task_alias .* is ' '"),
    ],
)
def test_task_is_refused_by_field(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvalTaskConfig(*given)


@pytest.mark.parametrize(
    ("evals", "message"),
    [
        ([], "evals is empty"),
        (None, "evals is None: give a list"),
        ({"arc_easy": 10}, "evals is .*: give a list"),
        ([ARC, 7], r"evals\[1\] is 7: give an EvalTaskConfig"),
        ([ARC, ARC], "two tasks that the results would both call 'arc_easy_10shot'"),
        (["arc_easy", "arc_easy"], "both call 'arc_easy_defaultshot'"),
        ([ARC, EvalTaskConfig("boolq", 0, "arc_easy"), EvalTaskConfig("x", 0, "arc_easy_10shot")], "'arc_easy_10shot'"),
    ],
)
def test_list_of_tasks_is_refused(evals: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_tasks(evals)


def test_tasks_may_be_names_and_have_labels() -> None:
    assert check_tasks("arc_easy") == (EvalTaskConfig("arc_easy"),)
    assert labels(check_tasks((ARC, "boolq", *CORE_TASKS[6:8]))) == [
        "arc_easy", "boolq", "hellaswag_0shot", "hellaswag_10shot",
    ]  # fmt: skip
    twice = (ARC, EvalTaskConfig("arc_easy", 0), MMLU_5_SHOT, MMLU_PRO_5_SHOT)
    assert labels(twice) == ["arc_easy_10shot", "arc_easy_0shot", "mmlu_5shot", "leaderboard_mmlu_pro_5shot"]


def test_each_list_is_an_evaluation() -> None:
    lists = [getattr(tasks, name) for name in tasks.__all__ if name.endswith(("_TASKS", "_MMLU", "_MCQ", "_GEN"))]
    assert len(lists) >= 19 and all(check_tasks(each) == each for each in lists)
