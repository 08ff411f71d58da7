"""Leaderboard of speedruns: one table and one chart, the best first under each compute budget.

A run is ranked under the smallest budget that it fits in. It is on the frontier if no run is better at the same cost,
or as good at a lower one; equal runs are on it together.

If a run has no result, the step writes the board of the others. Then it fails and names the missing runs, as a
comparison does, and the next run makes them and the board again.
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
from tradewind.records.parsing import RecordFormatError, parse_object
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, TEXT, check_fields
from tradewind.storage.bounded_read import LARGE, Content
from tradewind.text import as_csv, as_markdown, format_columns, single_line

OPEN: Final = "open"
"""Budget of runs that cost more than every budget, or without budgets."""
MAX_LABELS: Final = 20
"""Number of runs of the highest rank that have a label in the chart."""
_NUMBERS: Final = (
    "model_size", "total_tokens", "model_flops", "training_hardware_flops", "mfu", "training_time", "num_devices"
)  # fmt: skip
"""Other columns of the table."""
_OF_AUTHOR: Final = ("name", "affiliation", "url")


@dataclass(frozen=True)
class Entry:
    """A run on the board.

    Attributes:
        run: The run and its numbers.
        about: ``author`` and ``description``, if the run has them.
        budget: Smallest budget that it fits in; None for an open one.
        rank: Rank under that budget, from 1.
        is_on_frontier: Whether no run is better at the same cost, or as good at a lower one.
    """

    run: RunResult
    about: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None
    rank: int = 0
    is_on_frontier: bool = False


@dataclass(frozen=True)
class Rules:
    """Order of a board.

    Attributes:
        metric: The number to rank by.
        cost: The number that budgets limit.
        budgets: Budgets of the groups; without any, all runs are one group.
    """

    metric: str
    cost: str
    higher_is_better: bool = False
    budgets: Sequence[float] = ()

    def value(self, run: RunResult) -> float:
        """Return the sort value, smaller for a better run; infinite for one that diverged."""
        value = run.results[self.metric]
        if not math.isfinite(value):
            return math.inf
        return -value if self.higher_is_better else value

    def budget_of(self, run: RunResult) -> float | None:
        """Return the smallest budget that the run fits in."""
        fitting = [budget for budget in self.budgets if run.results[self.cost] <= budget]
        return min(fitting, default=None)


def rank_runs(runs: Sequence[RunResult], about: Mapping[str, Mapping[str, Any]], rules: Rules) -> list[Entry]:
    """Rank runs: the smallest budget first, in each the best run; of equals the cheaper one, then the first."""
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
    """Format a budget for the board, such as ``1e+18``."""
    return OPEN if budget is None else f"{budget:g}"


def leaderboard_picture(entries: Sequence[Entry], rules: Rules, title: str) -> bytes:
    """Draw a PNG of quality by cost, without runs that diverged or lack a cost."""
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
    for cost, value, entry in shown[:MAX_LABELS]:
        axes.annotate(escape_math(entry.run.label), (cost, value), (4, 4), textcoords="offset points", fontsize="small")
    for budget in rules.budgets:
        axes.axvline(budget, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xlabel=escape_math(rules.cost), ylabel=escape_math(rules.metric))
    if is_wide([cost for cost, _, _ in shown]):
        axes.set_xscale("log")
    plain_frame(axes)
    return as_png(figure)


@dataclass(frozen=True)
class LeaderboardConfig:
    """Speedruns of ``write_leaderboard``, and their order."""

    runs: Mapping[str, str]
    """Label → output of a step that returns the numbers of a speedrun, such as ``report_speedrun``."""
    output_path: str
    """Gets ``leaderboard.md``, ``.csv``, ``.json`` and ``.png``."""
    metric: str = "eval_loss"
    """The number to rank by."""
    higher_is_better: bool = False
    cost: str = "model_flops"
    """The cost of a run, which budgets limit, and the horizontal axis of the chart."""
    budgets: Sequence[float] = ()
    """Runs are ranked by the smallest budget that they fit in; without any, all are one group."""
    title: str = "Leaderboard"
    """Heading of the table and of the chart."""

    def __post_init__(self) -> None:
        names = dict.fromkeys(("metric", "cost"), SOME_TEXT)
        check_fields(self, runs=RUNS, output_path=PATH, **names, higher_is_better=FLAG, budgets=BUDGETS, title=TEXT)
        check_run_paths(self.runs)

    @property
    def rules(self) -> Rules:
        """Return the order of the board."""
        return Rules(self.metric, self.cost, self.higher_is_better, self.budgets)


def write_leaderboard(config: LeaderboardConfig) -> dict[str, Any]:
    """Write the four files; return ``best``, the label of the best run, and ``runs``: label → the metric's value.

    With budgets also ``best_under``: budget → label of the best of all runs that cost no more.

    Raises:
        MissingRunsError: A run has no result, or lacks a number that the order needs; the board of the others is
            written.
    """
    from tradewind.recipes.comparing.reading import read_runs  # the file store: not while a DAG file is parsed

    ended, missing = read_runs(config.runs)
    needed = [config.metric, *([config.cost] if config.budgets else [])]
    missing += [
        missing_metric(run.label, run.results, lacking[0])
        for run in ended
        if (lacking := [name for name in needed if name not in run.results])
    ]
    shown = [run for run in ended if all(name in run.results for name in needed)]
    entries = rank_runs(shown, _read_submitters({run.label: config.runs[run.label] for run in shown}), config.rules)
    if entries:
        _write(config, entries, missing)
    if missing:
        done = f"The others are in {join(config.output_path, 'leaderboard.md')}." if entries else ""
        raise missing_runs_error(len(config.runs), missing, done)
    fitting = {
        format_budget(budget): [each for each in entries if each.budget is not None and each.budget <= budget]
        for budget in sorted(set(config.budgets))
    }
    return {
        "best": _best(config, entries),
        "best_under": {budget: _best(config, those) for budget, those in fitting.items() if those},
        "runs": {entry.run.label: _finite(entry.run.results[config.metric]) for entry in entries},
    }


def _read_submitters(paths: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Read ``author`` (name, affiliation, url) and ``description`` by label.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    from tradewind.records.manifests import RESULT_FILE  # these load the file store
    from tradewind.storage.files import read_contents

    files = {label: join(path, RESULT_FILE) for label, path in paths.items()}
    contents = read_contents(list(files.values()), LARGE)
    return {label: _submitter(contents.get(file)) for label, file in files.items()}


def _submitter(content: Content | None) -> dict[str, Any]:
    """Return what the result says; nothing if it cannot be read, since a function may return anything."""
    try:
        fields = parse_object(content.text) if content is not None and content.flaw is None else {}
    except RecordFormatError:
        return {}
    return submitter_of(fields)


def submitter_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``author`` and ``description`` as single lines; other values are none."""
    given = fields.get("author")
    author = {name: _line(given.get(name)) for name in _OF_AUTHOR} if isinstance(given, dict) else {}
    return {"author": author, "description": _line(fields.get("description"))}


def _line(value: Any) -> str:
    return single_line(value) if isinstance(value, str) else ""


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
    """Return the table, head first, without columns for numbers that no run has, or for missing budgets."""
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
