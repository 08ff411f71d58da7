"""Intervals of scores and differences cover the truth as often as they say, also where scores are missing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tradewind.evaluation.statistics import (
    Interval,
    Scores,
    mean_interval,
    paired_difference,
    unpaired_difference,
)

RUNS = 1000
LEAST = 0.92
"""Wilson's formula covers 95 % on average; in the worst of these cases, a share of 5 % of 20 documents, 92.5 %."""
Draw = Callable[[random.Random], list[float | None]]


def binary(rng: random.Random, count: int, share: float) -> list[float | None]:
    return [float(rng.random() < share) for _ in range(count)]


def covered(interval: Interval, truth: float) -> bool:
    assert interval.low is not None and interval.high is not None
    assert interval.low <= interval.value <= interval.high
    return interval.low <= truth <= interval.high


def coverage(seed: int, one: Callable[[random.Random], tuple[Interval, float]]) -> float:
    rng = random.Random(seed)
    return sum(covered(*one(rng)) for _ in range(RUNS)) / RUNS


@pytest.mark.parametrize("count", [20, 60, 300])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_wilson_interval_covers_share_as_often_as_it_says(count: int, share: float) -> None:
    assert coverage(1, lambda rng: (mean_interval(binary(rng, count, share)), share)) >= LEAST


@pytest.mark.parametrize(
    ("kind", "draw", "truth"),
    [
        ("agresti_coull", lambda rng: min(1.0, 2 * rng.random()), 0.75),
        ("student", lambda rng: rng.betavariate(2, 5), 2 / 7),
        ("agresti_coull", lambda rng: rng.choice([0.0, 0.5, 1.0]) if rng.random() < 0.2 else 0.0, 0.1),
        ("student", lambda rng: rng.gauss(-3, 2), -3.0),
        ("student", lambda rng: -rng.gammavariate(4, 1), -4.0),
    ],
)
def test_interval_of_other_scores_covers_their_mean(
    kind: str, draw: Callable[[random.Random], float], truth: float
) -> None:
    def one(rng: random.Random) -> tuple[Interval, float]:
        return mean_interval([draw(rng) for _ in range(60)]), truth

    assert coverage(2, one) >= LEAST
    assert mean_interval([draw(random.Random(seed)) for seed in range(60)]).kind == kind


@pytest.mark.parametrize("scale", [0.9, 1.1])
def test_difference_of_numbers_below_one_is_found(scale: float) -> None:
    rng = random.Random(4)
    before = [scale * rng.uniform(0.6, 0.95) for _ in range(50)]
    interval = paired_difference(before, [score + rng.uniform(0.03, 0.04) for score in before])
    assert interval.low is not None and interval.low > 0.03


def test_interval_covers_the_truth_if_wrong_answers_are_missing() -> None:
    def one(rng: random.Random) -> tuple[Interval, float]:
        full = binary(rng, 200, 0.6)
        lost = [at for at, score in enumerate(full) if not score][:15]  # 7.5 % of the documents, all wrong
        return mean_interval([None if at in lost else score for at, score in enumerate(full)]), 0.6

    assert coverage(3, one) >= LEAST
    assert mean_interval([1.0] * 90).low != mean_interval([1.0] * 90 + [None] * 10).low


def pair(rng: random.Random, count: int, gain: float) -> tuple[Scores, Scores]:
    """Return two versions that answer most documents alike; the second has ``gain`` more right."""
    before = [rng.random() < 0.5 for _ in range(count)]
    after = [(rng.random() < 0.5 if rng.random() < 0.2 else was) or rng.random() < 2 * gain for was in before]
    return [float(each) for each in before], [float(each) for each in after]


@pytest.mark.parametrize(("count", "gain"), [(40, 0.0), (200, 0.0), (200, 0.05)])
def test_paired_interval_covers_difference(count: int, gain: float) -> None:
    assert coverage(4, lambda rng: (paired_difference(*pair(rng, count, gain)), gain)) >= LEAST


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.5), (0.9, 0.95), (0.2, 0.4)])
def test_unpaired_interval_covers_difference(before: float, after: float) -> None:
    def one(rng: random.Random) -> tuple[Interval, float]:
        return unpaired_difference(binary(rng, 80, before), binary(rng, 120, after)), after - before

    assert coverage(5, one) >= LEAST


def test_pairs_find_smaller_difference_than_independent_samples() -> None:
    before, after = pair(random.Random(6), 400, 0.05)
    paired, apart = paired_difference(before, after), unpaired_difference(before, after)
    assert paired.value == pytest.approx(apart.value)
    assert paired.low is not None and paired.low > 0 and apart.low is not None and apart.low < 0


@pytest.mark.parametrize(
    ("before", "after"),
    [([0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]), ([0.3] * 30, [0.3] * 30), ([-2.0] * 5, [-2.0] * 5)],
)
def test_equal_scores_never_differ(before: Scores, after: Scores) -> None:
    interval = paired_difference(before, after)
    assert interval.value == 0 and (interval.low is None or (interval.low < 0 < (interval.high or 0)))


def test_missing_pairs_widen_interval_by_what_they_may_be() -> None:
    before, after = [1.0] * 50 + [0.0] * 50, [1.0] * 60 + [0.0] * 40
    whole = paired_difference(before, after)
    holes = paired_difference([*before[:-2], None, None], [None, None, *after[2:]])
    assert whole.low is not None and holes.low is not None and holes.low < whole.low - 0.03
    assert (
        whole.high is not None and holes.high is not None and holes.high == whole.high
    )  # the missing had the best already


@pytest.mark.parametrize(
    ("scores", "low", "high", "kind"),
    [
        ([1.0] * 8 + [0.0] * 2, 0.4902, 0.9433, "wilson"),  # published examples of the formulas
        ([0.0] * 20, 0.0, 0.1611, "wilson"),
        ([1.0], 0.2065, 1.0, "wilson"),
        ([0.4] * 9 + [1.0], 0.3101, 0.6328, "agresti_coull"),
        ([-1.0, -2.0, -3.0], -4.4841, 0.4841, "student"),
        ([-1.0, -3.0], -14.7062, 10.7062, "student"),
        ([-1.0], None, None, "student"),
        ([-1.0, -1.0], None, None, "student"),
    ],
)
def test_interval_of_known_scores(scores: Scores, low: float | None, high: float | None, kind: str) -> None:
    interval = mean_interval(scores)
    assert interval.kind == kind
    for end, expected in ((interval.low, low), (interval.high, high)):
        assert end is None if expected is None else end == pytest.approx(expected, abs=1e-3)


def test_no_scores_refused() -> None:
    for call in (mean_interval, lambda scores: paired_difference(scores, scores)):
        with pytest.raises(ValueError, match=r"missing|both"):
            call([None, None])
