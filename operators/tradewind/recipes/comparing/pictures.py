"""One picture of several runs: how good each is by what was set in it, and the losses by step or as a law has them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.one_line import in_a_line
from tradewind.recipes.comparing.runs import EndedRun, differing_settings
from tradewind.recipes.comparing.scaling_law import FLOPS_PER_PARAMETER_AND_TOKEN, Point, ScalingLaw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED_CURVES: Final = 10
"""How many curves have a colour and a name, the best ones; the others are grey."""
WIDE: Final = 8.0
"""An axis is logarithmic where the largest value is so many times the smallest one."""
LARGEST_DRAWN: Final = 1e100
"""Axes are computed in floating point: what is larger would leave no picture at all."""
_LONGEST_DRAWN: Final = 60


def comparison_picture(runs: Sequence[EndedRun], metric: str, title: str) -> bytes:
    """A PNG of runs that are ordered, the best first."""
    from matplotlib.figure import Figure

    has_curves = any(run.curve[0] for run in runs)
    figure = Figure(figsize=(11 if has_curves else 6, 4.5), dpi=140, layout="constrained")
    figure.suptitle(drawn(title))
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
    figure.suptitle(drawn(title))
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


def numeric_setting(runs: Sequence[EndedRun]) -> str | None:
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
    return -LARGEST_DRAWN < value < LARGEST_DRAWN


def drawn(text: str) -> str:
    """The text as it is to stand in a picture: matplotlib would read formulas between dollars."""
    return in_a_line(text, _LONGEST_DRAWN).replace("$", r"\$")


def is_wide(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows these better."""
    return len(values) > 1 and min(values) > 0 and max(values) / min(values) >= WIDE


def _draw_results(axes: Axes, runs: Sequence[EndedRun], metric: str) -> None:
    measured = [run for run in runs if is_drawable(run.results[metric])]
    values = [run.results[metric] for run in measured]
    swept = numeric_setting(runs)
    if swept is None:
        axes.plot(values[::-1], range(len(values)), "o", color="#1f5fa8")
        labels = [drawn(run.label) for run in measured][::-1]
        axes.set(xlabel=drawn(metric), yticks=range(len(values)), yticklabels=labels)
        return
    points = sorted((float(run.settings[swept]), run.results[metric]) for run in measured)
    axes.plot([x for x, _ in points], [y for _, y in points], "o-", color="#1f5fa8")
    axes.set(xlabel=drawn(swept), ylabel=drawn(metric))
    if is_wide([x for x, _ in points]):
        axes.set_xscale("log")


def _draw_curves(axes: Axes, runs: Sequence[EndedRun]) -> None:
    with_curves = [run for run in runs if run.curve[0]]
    for run in reversed(with_curves[NAMED_CURVES:]):
        axes.plot(*run.curve, color="#cccccc", linewidth=0.8)
    for run in with_curves[:NAMED_CURVES]:
        axes.plot(*run.curve, linewidth=1.4, label=drawn(run.label))
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend(frameon=False, fontsize="small")
