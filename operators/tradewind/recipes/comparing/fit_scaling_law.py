"""Fit a scaling law to trainings of several sizes and lengths, and predict larger ones.

As in a comparison, the step fits the law to the trainings that have a result, and then fails and names the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tradewind.datasets.files import atomic_writer, join, write_json, write_text
from tradewind.recipes.comparing.runs import (
    BUDGETS,
    RUNS,
    MissingRun,
    RunResult,
    check_run_paths,
    is_positive,
    missing_metric,
    missing_runs_error,
    missing_runs_section,
    scaling_picture,
)
from tradewind.recipes.comparing.scaling_law import Point, ScalingLaw, TooFewPointsError, fit_law
from tradewind.steps.fields import PATH, SOME_TEXT, TEXT, check_fields
from tradewind.steps.needs import needs
from tradewind.text import as_markdown, format_columns

NUMBERS = ("loss", "parameters", "tokens")


@dataclass(frozen=True)
class ScalingLawConfig:
    """Trainings and predictions of ``fit_scaling_law``."""

    runs: Mapping[str, str]
    """Label → output of a step that returns the three numbers below, such as ``train_lm``."""
    output_path: str
    """Gets ``scaling_law.md``, ``scaling_law.json`` and ``scaling_law.png``."""
    loss: str = "eval_loss"
    """Name of the loss, in nats per token, in the steps' results; a nested one by its path."""
    parameters: str = "parameters"
    """Name of the model's number of parameters there."""
    tokens: str = "tokens"
    """Name of the number of training tokens there."""
    budgets: Sequence[float] = ()
    """FLOPs of trainings for which to report the best size and length."""
    title: str = "Scaling law"
    """Heading of the page and of the picture."""

    def __post_init__(self) -> None:
        names = dict.fromkeys(NUMBERS, SOME_TEXT)
        check_fields(self, runs=RUNS, output_path=PATH, **names, budgets=BUDGETS, title=TEXT)
        check_run_paths(self.runs)


@needs("matplotlib", "scipy")
def fit_scaling_law(config: ScalingLawConfig) -> dict[str, Any]:
    """Write the three files; return the numbers of the law and ``worst_error``, its largest relative error.

    Raises:
        MissingRunsError: A run has no result, or lacks the numbers; the law of the others is written.
        TooFewPointsError: The runs are too few or too alike for a law.
    """
    from tradewind.recipes.comparing.reading import read_runs  # the file store: not while a DAG file is parsed

    ended, missing = read_runs(config.runs)
    points = {run.label: point for run in ended if isinstance(point := _point(config, run), Point)}
    missing += [lack for run in ended if isinstance(lack := _point(config, run), MissingRun)]
    try:
        law = fit_law(list(points.values()))
    except TooFewPointsError as error:
        if missing:
            raise missing_runs_error(len(config.runs), missing, str(error)) from error
        raise
    result = _write(config, law, points, missing)
    if missing:
        page = join(config.output_path, "scaling_law.md")
        raise missing_runs_error(len(config.runs), missing, f"The law through the others is in {page}.")
    return result


def _point(config: ScalingLawConfig, run: RunResult) -> Point | MissingRun:
    values = {}
    for field in NUMBERS:
        name = getattr(config, field)
        if name not in run.results:
            return missing_metric(run.label, run.results, name)
        if not is_positive(value := run.results[name]):
            return MissingRun(run.label, f"its {name} is {value}, and a law needs positive numbers")
        values[field] = float(value)
    return Point(**values)


def _write(
    config: ScalingLawConfig, law: ScalingLaw, points: Mapping[str, Point], missing: Sequence[MissingRun]
) -> dict[str, Any]:
    rows = _rows(law, points)
    print("\n".join([str(law), *format_columns(rows)]), flush=True)
    numbers = asdict(law) | {"worst_error": max(abs(_error(law, point)) for point in points.values())}
    optima = [(flops, sizes) for flops in config.budgets if (sizes := law.best_for(flops)) is not None]
    best = [
        {"flops": flops, "parameters": n, "tokens": d, "loss": loss}
        for flops, (n, d) in optima
        if math.isfinite(loss := law.loss(n, d))
    ]
    with atomic_writer(join(config.output_path, "scaling_law.png")) as file:
        file.write(scaling_picture(law, points, config.title))
    write_json(join(config.output_path, "scaling_law.json"), numbers | {"best": best})
    parts = [f"# {config.title}", f"`{law}`", as_markdown(rows), "![Measured and predicted losses](scaling_law.png)"]
    if best:
        table = as_markdown([list(best[0]), *([f"{value:.4g}" for value in each.values()] for each in best)])
        parts += ["## The best training for a number of FLOPs", table]
    write_text(join(config.output_path, "scaling_law.md"), "\n\n".join([*parts, *missing_runs_section(missing)]) + "\n")
    return numbers


def _rows(law: ScalingLaw, points: Mapping[str, Point]) -> list[list[str]]:
    """Return the table, head first, the lowest loss on top."""

    def row(label: str, point: Point) -> list[str]:
        predicted = law.loss(point.parameters, point.tokens)
        sizes = [f"{point.parameters:.4g}", f"{point.tokens:.4g}"]
        return [label, *sizes, f"{point.loss:.4f}", f"{predicted:.4f}", f"{_error(law, point):+.2%}"]

    by_loss = sorted(points.items(), key=lambda item: item[1].loss)
    return [["run", *NUMBERS[1:], "loss", "predicted", "error"], *(row(*item) for item in by_loss)]


def _error(law: ScalingLaw, point: Point) -> float:
    """Return the error relative to the measured loss."""
    return law.loss(point.parameters, point.tokens) / point.loss - 1
