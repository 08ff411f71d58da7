"""Spread of a training's step times."""

from __future__ import annotations

from benchmarks.train import steps


def test_the_median_of_pairs_lies_where_the_sign_test_says() -> None:
    found = steps.Training(1.0, 1.0, [float(number) for number in range(15)])
    assert found.spread == (3.0, 11.0)  # of 15 pairs, the fourth from both ends: Conover, Practical Nonparametrics
