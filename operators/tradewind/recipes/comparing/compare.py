"""Compare runs in one table and one picture, the best first, such as those of a sweep.

If a run has no result, the step still writes the table and the picture of the others. Then it fails and names the
missing runs, so that no partial table counts as the result. The next run makes the missing results and compares again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets.files import atomic_writer, join, write_text
from tradewind.recipes.comparing.runs import (
    RUNS,
    MissingRun,
    RunResult,
    check_run_paths,
    comparison_picture,
    differing_settings,
    missing_metric,
    missing_runs_error,
    missing_runs_section,
)
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, TEXT, check_fields
from tradewind.steps.needs import needs
from tradewind.text import as_csv, as_markdown, format_columns, single_line

_GIVEN: Final = "settings."
"""Prefix of numbers in the result of ``train_lm`` that are settings."""


@dataclass(frozen=True)
class CompareConfig:
    """Runs and metric of ``compare_runs``."""

    runs: Mapping[str, str]
    """Label → output of a step that returns numbers, such as ``train_lm`` and ``evaluate_lm``."""
    output_path: str
    """Gets ``comparison.md``, ``.csv`` and ``.png``, and ``best.json`` if all runs have a result."""
    metric: str = "eval_loss"
    """Number of the steps' results to compare by; a nested one by its path (``checkpoint.loss``)."""
    higher_is_better: bool = False
    title: str = "Comparison"
    """Heading of the table and of the picture."""

    def __post_init__(self) -> None:
        check_fields(self, runs=RUNS, output_path=PATH, metric=SOME_TEXT, higher_is_better=FLAG, title=TEXT)
        check_run_paths(self.runs)


@needs("matplotlib")
def compare_runs(config: CompareConfig) -> dict[str, Any]:
    """Write the files; return ``best``, the label of the best run, and ``runs``: label → the metric's value.

    Raises:
        MissingRunsError: A run has no result, or lacks the metric; the files of the others are written.
    """
    from tradewind.recipes.comparing.best import write_best
    from tradewind.recipes.comparing.reading import read_runs  # the file store: not while a DAG file is parsed

    ended, missing = read_runs(config.runs)
    measured = {run.label: run for run in ended if config.metric in run.results}
    missing += [missing_metric(run.label, run.results, config.metric) for run in ended if run.label not in measured]
    sign = -1 if config.higher_is_better else 1

    def rank(run: RunResult) -> tuple[bool, float]:
        value = run.results[config.metric]
        return not math.isfinite(value), sign * value  # a training that diverged comes last

    ordered = sorted(measured.values(), key=rank)
    if ordered:
        _write(config, ordered, missing)
    if missing:
        done = f"The others are compared in {join(config.output_path, 'comparison.md')}." if ordered else ""
        raise missing_runs_error(len(config.runs), missing, done)
    write_best(config.output_path, ordered[0], config.runs[ordered[0].label])
    values = {run.label: run.results[config.metric] for run in ordered}
    finite = {label: value if math.isfinite(value) else None for label, value in values.items()}
    return {"best": ordered[0].label, "runs": finite}


def comparison_rows(runs: Sequence[RunResult], metric: str) -> list[list[str]]:
    """Return the table, head first: a row per run with differing settings, the metric and other results.

    The ``settings`` that a training returns are no results: two dozen columns, mostly the same in all rows.
    """
    settings = differing_settings(runs)
    others = [
        name
        for name in dict.fromkeys(name for run in runs for name in run.results)
        if name != metric and not name.startswith(_GIVEN)
    ]
    rows = [["run", *settings, metric, *others]]
    for run in runs:
        values = [*map(run.settings.get, settings), *map(run.results.get, (metric, *others))]
        rows.append([run.label, *map(_cell, values)])
    return rows


def _write(config: CompareConfig, ordered: Sequence[RunResult], missing: Sequence[MissingRun]) -> None:
    rows = comparison_rows(ordered, config.metric)
    print("\n".join(format_columns(rows)), flush=True)
    with atomic_writer(join(config.output_path, "comparison.png")) as file:
        file.write(comparison_picture(ordered, config.metric, config.title))
    write_text(join(config.output_path, "comparison.csv"), as_csv(rows))
    parts = [f"# {config.title}", as_markdown(rows), "![Results, and losses by step](comparison.png)"]
    write_text(join(config.output_path, "comparison.md"), "\n\n".join([*parts, *missing_runs_section(missing)]) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else single_line(value)
