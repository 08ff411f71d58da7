"""What runs are to those who compare them: their results, what was set in them, and their loss by step."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tradewind.recipes.comparing.scaling_law import FLOPS_PER_PARAMETER_AND_TOKEN, Point, ScalingLaw
from tradewind.steps.fields import PATH, FieldRule
from tradewind.text import markdown_text, single_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _are_runs(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(label, str) and label.strip() and label.isprintable() for label in value)
    )


RUNS: Final = FieldRule("a mapping of labels to steps, such as {'lr=0.1': trained}", _are_runs)

BUDGETS: Final = FieldRule(
    "a list of numbers above 0, such as [1e21]",
    lambda value: isinstance(value, (list, tuple)) and all(is_positive(each) for each in value),
)


def is_positive(value: Any) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


@dataclass(frozen=True)
class RunResult:
    """A run that has a result.

    Attributes:
        label: How it is called in the comparison.
        settings: What counts in its version and that of the steps it was made from, by the name of the field; of two
            fields of one name that of the step nearer to the run.
        results: The numbers in what its function returned, those further in by path (``checkpoint.loss``).
        curve: The steps at which a loss was measured, and the losses; empty if the run is no training.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[Sequence[int], Sequence[float]] = ((), ())


def check_run_paths(runs: Mapping[str, str]) -> None:
    """Raise ``ValueError`` if one of the runs is no path."""
    for label, path in runs.items():
        PATH.check(f"runs[{label!r}]", path)


def differing_settings(runs: Sequence[RunResult]) -> list[str]:
    """The names of the settings that are not the same in all runs, in the order in which they come up."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if any(_differs(run, runs[0], name) for run in runs)]


def _differs(run: RunResult, other: RunResult, name: str) -> bool:
    return (name in run.settings) != (name in other.settings) or run.settings.get(name) != other.settings.get(name)


# Runs that have no result, for people: in an error, and on the page that shows the others.

MAX_NAMED: Final = 10
MAX_REASON_CHARS: Final = 200
"""Characters."""


class MissingRunsError(RuntimeError):
    """Some of the runs that were to be read together have no result."""


@dataclass(frozen=True)
class MissingRun:
    """A run that has no result, and why."""

    label: str
    reason: str


def missing_metric(label: str, results: Mapping[str, Any], name: str) -> MissingRun:
    """A run that ended, but not with a number of this name."""
    known = ", ".join(list(results)[:MAX_NAMED]) or "no numbers"
    return MissingRun(label, f"returned no {name!r}, but {known}")


def missing_runs_error(total: int, missing: Sequence[MissingRun], done: str) -> MissingRunsError:
    """The error that names them; ``done`` is a sentence on what was done with the others."""
    named = "; ".join(f"{run.label} ({_one_line(run.reason)})" for run in missing[:MAX_NAMED])
    more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    return MissingRunsError(f"{len(missing)} of {total} runs have no result: {named}{more}. {done}".rstrip())


def missing_runs_section(missing: Sequence[MissingRun]) -> list[str]:
    """The section of a page in Markdown that names them, if there are any."""
    lines = "\n".join(f"- {markdown_text(f'{run.label}: {_one_line(run.reason)}')}" for run in missing)
    return [f"## Without a result\n\n{lines}"] if missing else []


def _one_line(text: str) -> str:
    return single_line(text, MAX_REASON_CHARS)


# One picture of several runs: how good each is by what was set in it, and the losses by step or as a law has them.

NAMED_CURVES: Final = 10
"""How many curves have a colour and a name, the best ones; the others are grey."""
WIDE: Final = 8.0
"""An axis is logarithmic where the largest value is so many times the smallest one."""
MAX_DRAWN: Final = 1e100
"""Axes are computed in floating point: what is larger would leave no picture at all."""
_LONGEST_DRAWN: Final = 60


def comparison_picture(runs: Sequence[RunResult], metric: str, title: str) -> bytes:
    """A PNG of runs that are ordered, the best first."""
    from matplotlib.figure import Figure

    has_curves = any(run.curve[0] for run in runs)
    figure = Figure(figsize=(11 if has_curves else 6, 4.5), dpi=140, layout="constrained")
    figure.suptitle(escape_math(title))
    panels = figure.subplots(1, 2 if has_curves else 1, squeeze=False)[0]
    _draw_results(panels[0], runs, metric)
    if has_curves:
        _draw_curves(panels[1], runs)
    for axes in panels:
        plain_frame(axes)
    return as_png(figure)


def scaling_picture(law: ScalingLaw, points: Mapping[str, Point], title: str) -> bytes:
    """A PNG of measured and predicted losses by the FLOPs of the trainings."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=140, layout="constrained")
    axes = figure.subplots()
    figure.suptitle(escape_math(title))
    ordered = sorted(points.values(), key=lambda point: point.parameters * point.tokens)
    flops = [FLOPS_PER_PARAMETER_AND_TOKEN * point.parameters * point.tokens for point in ordered]
    axes.plot(flops, [point.loss for point in ordered], "o", color="#1f5fa8", label="measured")
    predicted = [law.loss(point.parameters, point.tokens) for point in ordered]
    axes.plot(flops, predicted, "x", color="#d1603d", label="predicted")
    axes.set(xlabel="FLOPs", ylabel="loss (nats per token)", xscale="log")
    axes.legend(frameon=False, fontsize="small")
    plain_frame(axes)
    return as_png(figure)


def as_png(figure: Figure) -> bytes:
    """The picture, which is the same bytes whenever it is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def plain_frame(axes: Axes) -> None:
    """A light grid, and no lines above and on the right."""
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def numeric_setting(runs: Sequence[RunResult]) -> str | None:
    """The setting that a sweep went over: the one that differs, if it is only one and a number in every run."""
    differing = differing_settings(runs)
    if len(differing) != 1:
        return None
    values = [run.settings.get(differing[0]) for run in runs]
    return differing[0] if all(_is_drawable_number(value) for value in values) else None


def _is_drawable_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and is_drawable(value)


def is_drawable(value: float) -> bool:
    """Whether an axis can have it."""
    return -MAX_DRAWN < value < MAX_DRAWN


def escape_math(text: str) -> str:
    """The text as it is to stand in a picture: matplotlib would read formulas between dollars."""
    return single_line(text, _LONGEST_DRAWN).replace("$", r"\$")


def is_wide(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows these better."""
    return len(values) > 1 and min(values) > 0 and max(values) / min(values) >= WIDE


def _draw_results(axes: Axes, runs: Sequence[RunResult], metric: str) -> None:
    measured = [run for run in runs if is_drawable(run.results[metric])]
    values = [run.results[metric] for run in measured]
    swept = numeric_setting(runs)
    if swept is None:
        axes.plot(values[::-1], range(len(values)), "o", color="#1f5fa8")
        labels = [escape_math(run.label) for run in measured][::-1]
        axes.set(xlabel=escape_math(metric), yticks=range(len(values)), yticklabels=labels)
        return
    points = sorted((float(run.settings[swept]), run.results[metric]) for run in measured)
    axes.plot([x for x, _ in points], [y for _, y in points], "o-", color="#1f5fa8")
    axes.set(xlabel=escape_math(swept), ylabel=escape_math(metric))
    if is_wide([x for x, _ in points]):
        axes.set_xscale("log")


def _draw_curves(axes: Axes, runs: Sequence[RunResult]) -> None:
    with_curves = [run for run in runs if run.curve[0]]
    for run in reversed(with_curves[NAMED_CURVES:]):
        axes.plot(*run.curve, color="#cccccc", linewidth=0.8)
    for run in with_curves[:NAMED_CURVES]:
        axes.plot(*run.curve, linewidth=1.4, label=escape_math(run.label))
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend(frameon=False, fontsize="small")
