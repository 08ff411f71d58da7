"""A leaderboard of speedruns: one table and one chart, the best first under each compute budget.

A run that failed keeps none of the others from the board. It is written all the same; then the step fails and names
what is missing, as a comparison does: the next run makes it, and the board again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tradewind.datasets.files import atomic_writer, join, write_json, write_text
from tradewind.recipes.comparing.runs import (
    BUDGETS,
    RUNS,
    MissingRun,
    RunResult,
    as_png,
    check_run_paths,
    escape_math,
    is_drawable,
    is_wide,
    missing_metric,
    missing_runs_error,
    missing_runs_section,
    plain_frame,
)
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, TEXT, check_fields
from tradewind.text import as_csv, as_markdown, format_columns

# The order of a board: runs by their metric, under the smallest compute budget that each fits in.
#
# A run is on the frontier if none is better for as little, or as good for less. Equal runs are on it together.

OPEN: Final = "open"
"""What the runs are under that cost more than every budget, or where there are no budgets."""


@dataclass(frozen=True)
class Entry:
    """A run on the board.

    Attributes:
        run: With its numbers.
        about: ``author`` and ``description``, where the run says so.
        budget: The smallest one that it fits in; None for an open one.
        rank: Among those under that budget, from 1.
        is_on_frontier: Whether no run is better for as little, or as good for less.
    """

    run: RunResult
    about: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None
    rank: int = 0
    is_on_frontier: bool = False


@dataclass(frozen=True)
class Rules:
    """What a board is ordered by.

    Attributes:
        metric: The number that decides.
        cost: The number that budgets are of.
        budgets: Of the groups; none, and all are one group.
    """

    metric: str
    cost: str
    higher_is_better: bool = False
    budgets: Sequence[float] = ()

    def value(self, run: RunResult) -> float:
        """What is smaller the better the run is; infinite for one that diverged."""
        value = run.results[self.metric]
        if not math.isfinite(value):
            return math.inf
        return -value if self.higher_is_better else value

    def budget_of(self, run: RunResult) -> float | None:
        """The smallest budget that the run fits in."""
        fitting = [budget for budget in self.budgets if run.results[self.cost] <= budget]
        return min(fitting, default=None)


def ranked(runs: Sequence[RunResult], about: Mapping[str, Mapping[str, Any]], rules: Rules) -> list[Entry]:
    """The smallest budget first, and in each the best run; of equals, the cheaper one, then the one given first."""
    frontier = set(_frontier(runs, rules))
    entries: list[Entry] = []
    for budget in [*sorted(set(rules.budgets)), None]:
        group = [run for run in runs if rules.budget_of(run) == budget]
        ordered = sorted(group, key=lambda run: (rules.value(run), run.results.get(rules.cost, math.inf)))
        entries += [
            Entry(run, about.get(run.label, {}), budget, rank, run.label in frontier)
            for rank, run in enumerate(ordered, 1)
        ]
    return entries


def _frontier(runs: Sequence[RunResult], rules: Rules) -> Iterator[str]:
    best = (0.0, math.inf)
    costed = [run for run in runs if rules.cost in run.results]
    for run in sorted(costed, key=lambda run: (run.results[rules.cost], rules.value(run))):
        point = (run.results[rules.cost], rules.value(run))
        if point[1] < best[1] or point == best:
            best = point
            yield run.label


def format_budget(budget: float | None) -> str:
    """A budget as the board shows it, such as ``1e+18``."""
    return OPEN if budget is None else f"{budget:g}"


# The chart of a leaderboard: how good each run is by what it cost, and the frontier that a new run has to pass.

NAMED: Final = 20
"""How many runs have their label beside the point, those of the highest rank."""


def leaderboard_picture(entries: Sequence[Entry], rules: Rules, title: str) -> bytes:
    """A PNG; runs that diverged or whose cost nobody knows are not in it."""
    from matplotlib.figure import Figure

    shown = [
        (entry.run.results[rules.cost], entry.run.results[rules.metric], entry)
        for entry in sorted(entries, key=lambda entry: entry.rank)
        if is_drawable(entry.run.results.get(rules.cost, math.nan)) and is_drawable(entry.run.results[rules.metric])
    ]
    figure = Figure(figsize=(7, 4.5), dpi=140, layout="constrained")
    axes = figure.subplots()
    figure.suptitle(escape_math(title))
    axes.plot([cost for cost, _, _ in shown], [value for _, value, _ in shown], "o", color="#1f5fa8")
    frontier = sorted((cost, value) for cost, value, entry in shown if entry.is_on_frontier)
    axes.plot([cost for cost, _ in frontier], [value for _, value in frontier], "-", color="#d1603d", linewidth=1.2)
    for cost, value, entry in shown[:NAMED]:
        axes.annotate(escape_math(entry.run.label), (cost, value), (4, 4), textcoords="offset points", fontsize="small")
    for budget in rules.budgets:
        axes.axvline(budget, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xlabel=escape_math(rules.cost), ylabel=escape_math(rules.metric))
    if is_wide([cost for cost, _, _ in shown]):
        axes.set_xscale("log")
    plain_frame(axes)
    return as_png(figure)


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
    from tradewind.recipes.speedruns.submitters import read_submitters

    ended, missing = read_runs(config.runs)
    needed = [config.metric, *([config.cost] if config.budgets else [])]
    missing += [
        missing_metric(run.label, run.results, lacking[0])
        for run in ended
        if (lacking := [name for name in needed if name not in run.results])
    ]
    shown = [run for run in ended if all(name in run.results for name in needed)]
    entries = ranked(shown, read_submitters({run.label: config.runs[run.label] for run in shown}), config.rules)
    if entries:
        _write(config, entries, missing)
    if missing:
        where = f"The others are in {join(config.output_path, 'leaderboard.md')}." if entries else ""
        raise missing_runs_error(len(config.runs), missing, where)
    fitting = {
        format_budget(budget): [each for each in entries if each.budget is not None and each.budget <= budget]
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
    print("\n".join(format_columns(rows)), flush=True)
    with atomic_writer(join(config.output_path, "leaderboard.png")) as file:
        file.write(leaderboard_picture(entries, config.rules, config.title))
    write_text(join(config.output_path, "leaderboard.csv"), as_csv(rows))
    write_json(join(config.output_path, "leaderboard.json"), [_as_json(entry) for entry in entries])
    order = "highest" if config.higher_is_better else "lowest"
    star = f"A star: no run is better for as little {config.cost}, or as good for less."
    about = f"By {config.metric}, the {order} first. {star}"
    parts = [f"# {config.title}", about, as_markdown(rows), f"![{config.metric} by {config.cost}](leaderboard.png)"]
    write_text(join(config.output_path, "leaderboard.md"), "\n\n".join([*parts, *missing_runs_section(missing)]) + "\n")


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
        rows.append([*([format_budget(entry.budget)] if budget else []), *cells, entry.about.get("description") or ""])
    return rows


def _as_json(entry: Entry) -> dict[str, Any]:
    numbers = {name: _finite(value) for name, value in entry.run.results.items()}
    place = {"budget": entry.budget, "rank": entry.rank, "is_on_frontier": entry.is_on_frontier}
    return {"run": entry.run.label, **entry.about, **place, **numbers}


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
