"""Make the steps that read evaluations: tables, leaderboards, comparisons of two, and gates.

They read only ``record.json`` and ``samples.parquet``, so each is a small job. Titles and labels of columns do not
count in a version; the evaluations, the tasks and the bounds do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.evaluation.compare import CompareEvaluationsConfig, compare_two
from tradewind.evaluation.compiled import CompileResultsConfig, compile_table
from tradewind.evaluation.evaluated import EVALUATIONS
from tradewind.evaluation.leaderboard import LeaderboardConfig, write_leaderboard
from tradewind.evaluation.require import RequireConfig, check_requirement
from tradewind.recipes.data.document_sets import path_input
from tradewind.recipes.steps import naming_step, recipe_step
from tradewind.steps import ExecutorStep, InputName
from tradewind.text import truncated_repr

__all__ = ["compare_evaluations", "compile_results", "leaderboard", "require"]

_AS_THEY_ARE: Final = (
    "evaluations", "before", "after", "evaluation", "no_worse_than", "title", "before_label", "after_label",
)  # fmt: skip
"""Fields that are not made versioned: references count by themselves, labels and titles not."""


@naming_step
def compile_results(name: str, evaluations: Any, **options: Any) -> ExecutorStep:
    """Return a step that writes the scores of evaluations as one table: JSON lines, CSV and Markdown.

    It runs when all have ended, also if some failed. If one has no record, the step writes the table of the others, and
    fails with that one's label.

    Args:
        name: Name of the step.
        evaluations: Label → a step of an evaluation, its output, or a list of these; or a list of steps, whose labels
            are their names.
        options: Of ``ExecutorStep`` and ``CompileResultsConfig``. The ``title`` does not count.

    Raises:
        ValueError: ``evaluations`` names none, or a label or an evaluation is invalid.
    """
    recipe = (
        "compile_results",
        compile_table,
        CompileResultsConfig,
        "Scores of evaluations in one table.",
        _AS_THEY_ARE,
    )
    return recipe_step(name, recipe, {}, {"evaluations": _labelled(evaluations), **options})


@naming_step
def leaderboard(name: str, evaluations: Any, **options: Any) -> ExecutorStep:
    """Return a step that ranks evaluations by each task, where scores that may be equal share a rank.

    It runs when all have ended, also if some failed, as ``compile_results`` does.

    Args:
        name: Name of the step.
        evaluations: As for ``compile_results``.
        options: Of ``ExecutorStep`` and ``LeaderboardConfig``: ``tasks`` and ``metrics`` to rank by. The ``title`` does
            not count.

    Raises:
        ValueError: ``evaluations`` names none, or a label or an evaluation is invalid.
    """
    recipe = ("leaderboard", write_leaderboard, LeaderboardConfig, "Evaluations ranked by each task.", _AS_THEY_ARE)
    return recipe_step(name, recipe, {}, {"evaluations": _labelled(evaluations), **options})


@naming_step
def compare_evaluations(name: str, before: Any, after: Any, **options: Any) -> ExecutorStep:
    """Return a step that says for each score whether ``after`` is better than ``before``, paired by document.

    Args:
        name: Name of the step.
        before: A step of an evaluation, its output, or a list of these.
        after: The same.
        options: Of ``ExecutorStep`` and ``CompareEvaluationsConfig``. ``title``, ``before_label`` and ``after_label``
            do not count.

    Raises:
        ValueError: An evaluation is no input.
    """
    about = "Two evaluations compared by document."
    recipe = ("compare_evaluations", compare_two, CompareEvaluationsConfig, about, _AS_THEY_ARE)
    inputs = {"before": _inputs("before", before), "after": _inputs("after", after)}
    return recipe_step(name, recipe, {}, inputs | options)


def require(evaluation: Any, task: str, *, name: str | None = None, **options: Any) -> ExecutorStep:
    """Return a gate: a step that fails if a score is not what is required, with confidence.

    Args:
        evaluation: A step of an evaluation, or its output.
        task: Name of a task or group in it.
        name: Name of the step; if not given, that of the evaluation with ``/require/`` and the task's.
        options: Of ``ExecutorStep`` and ``RequireConfig``: ``at_least``, ``at_most``, ``no_worse_than`` another
            evaluation, or ``previous=True``; ``metric``; ``confident``, whether the step fails only if the 95 %
            interval excludes the bound, True by default. All count in the version. Which evaluation is the previous
            one does not: it is looked up when the step runs, and a gate that passed does not look again.

    Raises:
        ValueError: A value is invalid, or nothing is required.
    """
    if name is None:
        step = evaluation.step if isinstance(evaluation, InputName) else evaluation
        if not isinstance(step, ExecutorStep) or not isinstance(task, str):
            raise ValueError(f"evaluation={truncated_repr(evaluation)} is no step, so give the gate a name=.")
        name = f"{step.name}/require/{task}"
    return _gate(name, evaluation, task, options)


@naming_step
def _gate(name: str, evaluation: Any, task: str, options: Mapping[str, Any]) -> ExecutorStep:
    about = f"Passes if {task} is as required."
    recipe = ("require", check_requirement, RequireConfig, about, _AS_THEY_ARE)
    inputs = {"evaluation": path_input("evaluation", evaluation), "task": task}
    other = options.get("no_worse_than")
    given = {} if other is None else {"no_worse_than": path_input("no_worse_than", other)}
    return recipe_step(name, recipe, {}, {**inputs, **options, **given})


def _labelled(given: Any) -> dict[str, Any]:
    """Return label → inputs, which need not have succeeded; raises ``ValueError`` with the field."""
    if isinstance(given, (list, tuple)):
        steps = {getattr(each, "name", None): each for each in given if isinstance(each, ExecutorStep)}
        if len(steps) < len(given) or not given:
            raise ValueError(
                f"evaluations={truncated_repr(given)}: give steps with different names, or labels, such as "
                "{'before': evaluated}."
            )
        given = steps
    EVALUATIONS.check("evaluations", given)
    return {label: _ended(_inputs(f"evaluations[{label!r}]", each)) for label, each in given.items()}


def _inputs(field: str, given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [path_input(f"{field}[{at}]", each) for at, each in enumerate(given)]
    return path_input(field, given)


def _ended(given: Any) -> Any:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [_ended(each) for each in given]
    return given.even_if_failed() if isinstance(given, InputName) else given
