"""Runs to compare: their results, settings and losses by step, runs without a result, and pictures of several."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tradewind.recipes.comparing.scaling_law import FLOPS_PER_PARAMETER_AND_TOKEN, Point, ScalingLaw
from tradewind.steps.fields import PATH, FieldRule
from tradewind.text import markdown_text, single_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_NAMED: Final = 10
"""Runs that an error names."""
MAX_REASON_CHARS: Final = 200
NAMED_CURVES: Final = 10
"""Number of the best curves, which have a colour and a name; the others are grey."""
WIDE: Final = 8.0
"""Ratio of largest to smallest value from which an axis is logarithmic."""
MAX_DRAWN: Final = 1e100
"""Bound for values: larger ones, and smaller ones than its inverse, overflow in axes and in laws."""
_MAX_TEXT_CHARS: Final = 60


def _are_runs(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(label, str) and label.strip() and label.isprintable() for label in value)
    )


RUNS: Final = FieldRule("a mapping of labels to steps, such as {'lr=0.1': trained}", _are_runs)

BUDGETS: Final = FieldRule(
    "a list of numbers from 1e-100 to 1e100, such as [1e21]",
    lambda value: isinstance(value, (list, tuple)) and all(is_positive(each) for each in value),
)


def is_positive(value: Any) -> bool:
    """Whether it is a number above 0 that arithmetic can handle."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 / MAX_DRAWN <= value <= MAX_DRAWN


@dataclass(frozen=True)
class RunResult:
    """A run that has a result.

    Attributes:
        label: Its name in the comparison.
        settings: Fields that count in its version or in that of its inputs; of two fields of one name, that of the step
            nearer to the run.
        results: Numbers that its function returned, nested ones by path (``checkpoint.loss``).
        curve: Steps with a measured loss, and the losses; empty if the run is no training.
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
    """Return the names of the settings that differ between runs, in order of appearance."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    absent = object()
    first = runs[0].settings if runs else {}
    return [name for name in names if any(run.settings.get(name, absent) != first.get(name, absent) for run in runs)]


class MissingRunsError(RuntimeError):
    """Some of the runs have no result."""


@dataclass(frozen=True)
class MissingRun:
    """A run that has no result, and why."""

    label: str
    reason: str


def missing_metric(label: str, results: Mapping[str, Any], name: str) -> MissingRun:
    """Return a run that ended without a number of this name."""
    known = ", ".join(list(results)[:MAX_NAMED]) or "no numbers"
    return MissingRun(label, f"returned no {name!r}, but {known}")


def missing_runs_error(total: int, missing: Sequence[MissingRun], done: str) -> MissingRunsError:
    """Return the error that names the missing runs; ``done`` is a sentence about the others."""
    named = "; ".join(f"{run.label} ({_one_line(run.reason)})" for run in missing[:MAX_NAMED])
    more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    return MissingRunsError(f"{len(missing)} of {total} runs have no result: {named}{more}. {done}".rstrip())


def missing_runs_section(missing: Sequence[MissingRun]) -> list[str]:
    """Return the Markdown section that names the missing runs, if any."""
    lines = "\n".join(f"- {markdown_text(f'{run.label}: {_one_line(run.reason)}')}" for run in missing)
    return [f"## Without a result\n\n{lines}"] if missing else []


def _one_line(text: str) -> str:
    return single_line(text, MAX_REASON_CHARS)


def comparison_picture(runs: Sequence[RunResult], metric: str, title: str) -> bytes:
    """Draw a PNG of runs, which are ordered from the best."""
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
    """Draw a PNG of measured and predicted losses by the FLOPs of the trainings."""
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
    """Render the picture; the same picture gives the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def plain_frame(axes: Axes) -> None:
    """Draw a light grid, and no lines above and on the right."""
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def numeric_setting(runs: Sequence[RunResult]) -> str | None:
    """Return the setting of a sweep: the only one that differs, if it is a number in every run."""
    differing = differing_settings(runs)
    if len(differing) != 1:
        return None
    values = [run.settings.get(differing[0]) for run in runs]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return differing[0] if len(numbers) == len(values) and all(map(is_drawable, numbers)) else None


def is_drawable(value: float) -> bool:
    """Whether an axis can show it."""
    return value == 0 or 1 / MAX_DRAWN < abs(value) < MAX_DRAWN


def escape_math(text: str) -> str:
    """Escape a text for a picture: matplotlib reads formulas between dollars."""
    return single_line(text, _MAX_TEXT_CHARS).replace("$", r"\$")


def is_wide(values: Sequence[float]) -> bool:
    """Whether these values need a logarithmic axis."""
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
