"""A leaderboard of speedruns: one table and one chart, the best first under each compute budget.

A run that failed keeps none of the others from the board. It is written all the same; then the step fails and names
what is missing, as a comparison does: the next run makes it, and the board again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import atomic_writer, join, write_json, write_text
from tradewind.recipes.comparing.missing import MissingRun, missing_runs, without_number, without_result
from tradewind.recipes.comparing.runs import BUDGETS, RUNS, check_run_paths
from tradewind.recipes.speedruns.chart import leaderboard_picture
from tradewind.recipes.speedruns.ranking import Entry, Rules, named, ranked
from tradewind.steps.values.fields import FLAG, PATH, SOME_TEXT, TEXT, check_fields
from tradewind.text_table import aligned, as_csv, as_markdown

_NUMBERS: Final = (
    "model_size", "total_tokens", "model_flops", "training_hardware_flops", "mfu", "training_time", "num_devices"
)  # fmt: skip
"""Columns of the table besides those that decide."""


@dataclass(frozen=True)
class LeaderboardConfig:
    """Which speedruns ``write_leaderboard`` ranks, and by what."""

    runs: Mapping[str, str]
    """Label → output of a step that returns the numbers of a speedrun, such as ``report_speedrun``."""
    output_path: str
    """Gets ``leaderboard.md``, ``.csv``, ``.json`` and ``.png``."""
    metric: str = "eval_loss"
    """The number that decides."""
    higher_is_better: bool = False
    cost: str = "model_flops"
    """The number that a run costs: what budgets are of, and the horizontal axis of the chart."""
    budgets: Sequence[float] = ()
    """A run is ranked among those that fit in the same smallest one; none, and all are one group."""
    title: str = "Leaderboard"
    """Heading of the table and of the chart."""

    def __post_init__(self) -> None:
        names = dict.fromkeys(("metric", "cost"), SOME_TEXT)
        check_fields(self, runs=RUNS, output_path=PATH, **names, higher_is_better=FLAG, budgets=BUDGETS, title=TEXT)
        check_run_paths(self.runs)

    @property
    def rules(self) -> Rules:
        """What the board is ordered by."""
        return Rules(self.metric, self.cost, self.higher_is_better, self.budgets)


def write_leaderboard(config: LeaderboardConfig) -> dict[str, Any]:
    """Write the four files; returns ``best``, the label of the best run, and ``runs``: label → the metric's value.

    With budgets also ``best_under``: budget → label of the best of all runs that cost no more.

    Raises:
        MissingRunsError: A run has no result, or lacks a number that the order needs; the board of the others has been
            written.
    """
    from tradewind.recipes.comparing.reading import read_runs  # the file store: not while a DAG file is parsed
    from tradewind.recipes.speedruns.told import told_by

    ended, missing = read_runs(config.runs)
    needed = [config.metric, *([config.cost] if config.budgets else [])]
    missing += [
        without_number(run.label, run.results, lacking[0])
        for run in ended
        if (lacking := [name for name in needed if name not in run.results])
    ]
    shown = [run for run in ended if all(name in run.results for name in needed)]
    entries = ranked(shown, told_by({run.label: config.runs[run.label] for run in shown}), config.rules)
    if entries:
        _write(config, entries, missing)
    if missing:
        where = f"The others are in {join(config.output_path, 'leaderboard.md')}." if entries else ""
        raise missing_runs(len(config.runs), missing, where)
    fitting = {
        named(budget): [each for each in entries if each.budget is not None and each.budget <= budget]
        for budget in sorted(set(config.budgets))
    }
    return {
        "best": _best(config, entries),
        "best_under": {budget: _best(config, those) for budget, those in fitting.items() if those},
        "runs": {entry.run.label: _finite(entry.run.results[config.metric]) for entry in entries},
    }


def _best(config: LeaderboardConfig, entries: Sequence[Entry]) -> str:
    return min(entries, key=lambda entry: config.rules.value(entry.run)).run.label


def _write(config: LeaderboardConfig, entries: Sequence[Entry], missing: Sequence[MissingRun]) -> None:
    rows = leaderboard_rows(entries, config.rules)
    print("\n".join(aligned(rows)), flush=True)
    with atomic_writer(join(config.output_path, "leaderboard.png")) as file:
        file.write(leaderboard_picture(entries, config.rules, config.title))
    write_text(join(config.output_path, "leaderboard.csv"), as_csv(rows))
    write_json(join(config.output_path, "leaderboard.json"), [_as_json(entry) for entry in entries])
    order = "highest" if config.higher_is_better else "lowest"
    star = f"A star: no run is better for as little {config.cost}, or as good for less."
    about = f"By {config.metric}, the {order} first. {star}"
    parts = [f"# {config.title}", about, as_markdown(rows), f"![{config.metric} by {config.cost}](leaderboard.png)"]
    write_text(join(config.output_path, "leaderboard.md"), "\n\n".join([*parts, *without_result(missing)]) + "\n")


def leaderboard_rows(entries: Sequence[Entry], rules: Rules) -> list[list[str]]:
    """The table, its head first; a number that no run has, and a budget where there are none, has no column."""
    numbers = [rules.metric, *(name for name in dict.fromkeys((rules.cost, *_NUMBERS)) if name != rules.metric)]
    numbers = [name for name in numbers if any(name in entry.run.results for entry in entries)]
    budget = ["budget"] if rules.budgets else []
    rows = [[*budget, "rank", "run", "author", *numbers, "description"]]
    for entry in entries:
        star = " ★" if entry.is_on_frontier else ""
        author = (entry.about.get("author") or {}).get("name", "")
        cells = [f"{entry.rank}", f"{entry.run.label}{star}", author]
        cells += [_cell(entry.run.results.get(name)) for name in numbers]
        rows.append([*([named(entry.budget)] if budget else []), *cells, entry.about.get("description") or ""])
    return rows


def _as_json(entry: Entry) -> dict[str, Any]:
    numbers = {name: _finite(value) for name, value in entry.run.results.items()}
    place = {"budget": entry.budget, "rank": entry.rank, "is_on_frontier": entry.is_on_frontier}
    return {"run": entry.run.label, **entry.about, **place, **numbers}


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
