"""Steps for the results of a speedrun, and for the leaderboard."""

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
    """Return a step that writes cost, quality and author of a training to Marin's results file.

    Args:
        name: Name of the step.
        trained: A training step, or the output of one; its steps are timed from the third on.
        author: Name of the author.
        description: One sentence on what is new; also the step's description.
        options: Of ``ExecutorStep`` and ``SpeedrunReportConfig``: ``affiliation`` and ``url``. They count, as do author
            and description, so a change writes the file again.

    Raises:
        ValueError: ``trained`` is a step that makes something else, or an option is a field of neither.
    """
    about = "Cost and quality of the training."
    recipe = ("speedrun", report_speedrun, SpeedrunReportConfig, about)
    given = {"author": author, **({"summary": description, "description": description} if description else {})}
    return recipe_step(name, recipe, {"train_path": ("trained", trained)}, given | options)


@naming_step
def leaderboard(name: str, runs: Mapping[str, Any], **options: Any) -> ExecutorStep:
    """Return a step that ranks speedruns in one table and one chart, the best first under each budget.

    It runs when all have ended, also if some failed. If a run has no result, the step writes the board of the others,
    and fails with that run's label. The next run makes the missing results and the board again.

    Args:
        name: Name of the step.
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
