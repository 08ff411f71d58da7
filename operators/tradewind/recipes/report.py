"""Report of a training for users: losses, their curve, settings, and a sample."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tradewind.datasets.files import atomic_writer, join, write_text
from tradewind.recipes.comparing.runs import as_png, escape_math, is_drawable
from tradewind.recipes.metrics.file import is_measure, read_bounded_metrics, series
from tradewind.recipes.stored_json import read_object
from tradewind.recipes.train_lm import metrics_path, result_path
from tradewind.records.parsing import COUNT, MOMENT, OBJECT, TEXT, FieldType
from tradewind.steps.fields import PATH, check_fields
from tradewind.steps.fields import TEXT as ANY_TEXT
from tradewind.steps.needs import needs
from tradewind.text import as_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRAINED: Final = ("steps", "tokens", "parameters")
_TRAINING: Final = {**dict.fromkeys((*_TRAINED, "first_step"), COUNT), "settings": OBJECT}
_SCORE: Final = FieldType(
    lambda value: isinstance(value, dict) and all(is_measure(value.get(name)) for name in ("loss", "bpb")),
    "an object with the numbers loss and bpb",
)
_EVALUATION: Final = {
    **dict.fromkeys(("checkpoint", "hf"), _SCORE),
    **dict.fromkeys(("tokens", "bytes"), COUNT),
    "prompt": TEXT.or_null(),
    "sample": TEXT,
}
TRAIN_COLOUR, SMOOTHED_COLOUR, VALIDATION_COLOUR = "#a9c4e4", "#1f5fa8", "#d1603d"


@dataclass(frozen=True)
class ReportConfig:
    """Training that ``write_report`` describes."""

    train_path: str
    """Output of a training; only ``train_lm`` reports its settings."""
    eval_path: str
    """Output of ``evaluate_lm``."""
    output_path: str
    """Gets ``report.md`` and ``loss_curve.png``."""
    title: str = "Language model"
    """Heading of the report and of the picture."""

    def __post_init__(self) -> None:
        check_fields(self, train_path=PATH, eval_path=PATH, output_path=PATH, title=ANY_TEXT)


@needs("matplotlib")
def write_report(config: ReportConfig) -> dict[str, Any]:
    """Write both files; return ``loss`` (nats/token), ``bpb`` (bits/byte) and ``report``, the path of ``report.md``.

    Raises:
        ValueError: The training or the evaluation has not ended.
    """
    training = _read_result(result_path(config.train_path), "train_path", _TRAINING, _TRAINED)
    results = _read_result(join(config.eval_path, "results.json"), "eval_path", _EVALUATION, _EVALUATION)
    metrics = read_bounded_metrics(metrics_path(config.train_path)) or []
    with atomic_writer(join(config.output_path, "loss_curve.png")) as file:
        file.write(loss_curve(metrics, config.title))
    report = join(config.output_path, "report.md")
    write_text(report, report_text(config.title, training, results, metrics))
    return {"loss": results["checkpoint"]["loss"], "bpb": results["checkpoint"]["bpb"], "report": report}


def _read_result(path: str, field: str, kinds: Mapping[str, FieldType], required: Iterable[str]) -> dict[str, Any]:
    result = read_object(path, kinds, required)
    if result is None:
        raise ValueError(f"{field} is the output of a step that has not ended: there is no {path}.")
    return result


def report_text(title: str, training: dict[str, Any], results: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    """Return the report in Markdown."""
    losses = [
        ("Validation loss, checkpoint", f"{results['checkpoint']['loss']:.4f} nats/token"),
        ("Validation loss, export", f"{results['hf']['loss']:.4f} nats/token"),
        ("Bits per byte, checkpoint", f"{results['checkpoint']['bpb']:.4f}"),
        ("Bits per byte, export", f"{results['hf']['bpb']:.4f}"),
        ("Validation text", f"{results['tokens']:,} tokens, {results['bytes']:,} bytes"),
        ("Trained on", f"{training['tokens']:,} tokens in {_steps(training):,} steps"),
        ("Parameters", f"{training['parameters']:,}"),
        ("Speed", _speed(training, metrics)),
    ]
    settings = [(f"`{name}`", f"`{value}`") for name, value in training.get("settings", {}).items() if _is_set(value)]
    prompt = results["prompt"]
    fence = max(["``", *re.findall("`+", results["sample"])], key=len) + "`"  # longer than any in the sample
    parts = [
        f"# {title}",
        as_markdown([("Result", ""), *losses]),
        "![Training and validation loss by step](loss_curve.png)",
        "## Sample",
        "The model begins a text:" if prompt is None else f"The model continues `{prompt}`:",
        f"{fence}text\n{results['sample']}\n{fence}",
        *(["## Settings", as_markdown([("Setting", "Value"), *settings])] if settings else []),
    ]
    return "\n\n".join(parts) + "\n"


def _steps(training: dict[str, Any]) -> int:
    """Return the training's own steps: ``steps`` includes those of a training that it continues."""
    steps: int = training["steps"] - training.get("first_step", 0)
    return steps


def _is_set(value: Any) -> bool:
    return value is not False and value not in (None, "", {})  # 0 is a setting, and equal to False


def loss_curve(metrics: list[dict[str, Any]], title: str) -> bytes:
    """Draw a PNG of training and validation loss by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=140, layout="constrained")
    axes = figure.add_subplot()
    _draw_losses(axes, metrics)
    axes.set(title=escape_math(title), xlabel="step", ylabel="loss (nats per token)", xlim=(0, None))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return as_png(figure)


def _draw_losses(axes: Axes, metrics: list[dict[str, Any]]) -> None:
    steps, losses = _counted_from_one(metrics, "train/loss")
    axes.plot(steps, losses, color=TRAIN_COLOUR, linewidth=1, label="training, each step")
    axes.plot(steps, smooth(losses), color=SMOOTHED_COLOUR, linewidth=1.8, label="training, smoothed")
    steps, losses = _counted_from_one(metrics, "eval/loss")
    axes.plot(steps, losses, color=VALIDATION_COLOUR, linewidth=1.4, marker="o", markersize=5, label="validation")
    if steps:
        axes.annotate(
            f"{losses[-1]:.3f}", (steps[-1], losses[-1]), (0, 9), textcoords="offset points", ha="center",
            color=VALIDATION_COLOUR,
        )  # fmt: skip


def smooth(values: list[float], weight: float = 0.8) -> list[float]:
    """Return the exponential moving average, corrected for its start."""
    average, total, out = 0.0, 0.0, []
    for value in values:
        average, total = weight * average + (1 - weight) * value, weight * total + (1 - weight)
        out.append(average / total)
    return out


def _counted_from_one(metrics: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(step + 1, value) for step, value in zip(*series(metrics, key), strict=True) if is_drawable(value)]
    return [step for step, _ in points], [value for _, value in points]


def _speed(training: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    """Return the tokens per second of the median step."""
    times = [(row["step"], row["time"]) for row in metrics if "train/loss" in row and MOMENT.fits(row.get("time"))]
    gaps = [
        after - before
        for (first, before), (second, after) in zip(times, times[1:], strict=False)
        if second == first + 1
    ]
    if not gaps or _steps(training) < 1 or not (gap := statistics.median(gaps)):
        return "not measured"
    return f"{training['tokens'] / _steps(training) / gap:,.0f} tokens/s in the median step"
