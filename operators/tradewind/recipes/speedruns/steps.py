"""The steps of a speedrun: its results, and the board of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.lm.mixture import MixtureTrainConfig
from tradewind.recipes.speedruns.board import LeaderboardConfig, write_leaderboard
from tradewind.recipes.speedruns.results import SpeedrunReportConfig, report_speedrun
from tradewind.recipes.steps import naming_step, recipe_step
from tradewind.recipes.train_config import LmTrainConfig
from tradewind.steps import ExecutorStep

_TRAININGS: Final = (LmTrainConfig, LevanterTrainConfig, MixtureTrainConfig)


@naming_step
def speedrun(name: str, trained: Any, *, author: str, description: str = "", **options: Any) -> ExecutorStep:
    """What a training cost and how good it got, with its author, in the file that Marin's speedruns have.

    Args:
        name: Of the step.
        trained: A step that trains, or the output of one; its steps are timed from the third on.
        author: Who is to be named.
        description: What is new in it, in a sentence; also the step's.
        options: Of ``ExecutorStep`` and ``SpeedrunReportConfig``: ``affiliation`` and ``url``. They count, as do author
            and description, so that the file is written again when one of them changes.

    Raises:
        ValueError: ``trained`` is a step that makes something else, or an option is a field of neither.
    """
    about = "What the training cost and how good it got."
    recipe = ("speedrun", report_speedrun, SpeedrunReportConfig, about)
    told = {"author": author, **({"summary": description, "description": description} if description else {})}
    return recipe_step(name, recipe, {"train_path": ("trained", trained)}, told | options)


@naming_step
def leaderboard(name: str, runs: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Several speedruns in one table and one chart; it runs when all have ended, also if some failed.

    Under each compute budget the best comes first. If a run has no result, the step fails once it has written the board
    of the others, and names it; the next run makes what is missing, and the board again.

    Args:
        name: Of the step.
        runs: Label → a step of ``speedrun``, or its output.
        options: Of ``ExecutorStep`` and ``LeaderboardConfig``, such as ``budgets``, in FLOPs. The ``title`` does not
            count.

    Raises:
        ValueError: ``runs`` names none, a label is no text, or a run is no input, or a training itself.
    """
    for label, run in runs.items() if isinstance(runs, Mapping) else ():
        if isinstance(getattr(run, "config", None), _TRAININGS):
            raise ValueError(
                f"runs[{label!r}] is step {run.name!r}, which is a training: give a step of speedrun(...) that reads "
                "it."
            )
    about = "Speedruns, the best first under each budget."
    recipe = ("leaderboard", write_leaderboard, LeaderboardConfig, about, ("title",))
    return recipe_step(name, recipe, {"runs": ("runs", runs)}, options)
