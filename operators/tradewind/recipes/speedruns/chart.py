"""The chart of a leaderboard: how good each run is by what it cost, and the frontier that a new run has to pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tradewind.recipes.comparing.pictures import as_png, drawn, is_drawable, is_wide, plain_frame
from tradewind.recipes.speedruns.ranking import Entry, Rules

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
    figure.suptitle(drawn(title))
    axes.plot([cost for cost, _, _ in shown], [value for _, value, _ in shown], "o", color="#1f5fa8")
    frontier = sorted((cost, value) for cost, value, entry in shown if entry.is_on_frontier)
    axes.plot([cost for cost, _ in frontier], [value for _, value in frontier], "-", color="#d1603d", linewidth=1.2)
    for cost, value, entry in shown[:NAMED]:
        axes.annotate(drawn(entry.run.label), (cost, value), (4, 4), textcoords="offset points", fontsize="small")
    for budget in rules.budgets:
        axes.axvline(budget, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xlabel=drawn(rules.cost), ylabel=drawn(rules.metric))
    if is_wide([cost for cost, _, _ in shown]):
        axes.set_xscale("log")
    plain_frame(axes)
    return as_png(figure)
