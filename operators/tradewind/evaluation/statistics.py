"""95 % intervals of scores and of differences of scores, also where scores are missing.

An interval says between which ends the score would be over all documents like these: those of a benchmark are a sample
of what one would like to know. A score by document is a number, or None if it is missing. What is missing may have been
anything, so an interval reaches from its low end with the worst value for each to its high end with the best (Manski,
Partial Identification of Probability Distributions, 2003, chapter 1). Nothing is drawn at random.

| scores | mean | difference of pairs |
|---|---|---|
| 0 or 1 | Wilson (1927) | Bonett and Price (2012): two pairs added, one for each side |
| from 0 to 1, some of them 0 or 1 | Agresti and Coull (1998): two documents of 0 and two of 1 added | as for 0 or 1 |
| others | Student (1908) | Student, of the differences |

The difference of scores that are not paired combines the intervals of the means (Newcombe 1998, method 10).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

CONFIDENCE: Final = 0.95
WILSON: Final = "wilson"
ADJUSTED: Final = "agresti_coull"
STUDENT: Final = "student"
PAIRED: Final = "bonett_price"
UNPAIRED: Final = "newcombe"
NONE: Final = "none"
_Z: Final = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)

Scores = Sequence[float | None]


@dataclass(frozen=True)
class Interval:
    """A mean, or a difference of means, of the known scores with its interval.

    Attributes:
        value: The mean.
        low, high: Ends of the interval; None if there is none, as for one document or equal scores without bounds.
        kind: Its formula.
    """

    value: float
    low: float | None
    high: float | None
    kind: str


def mean_interval(scores: Scores) -> Interval:
    """Return the mean of the known scores with its interval.

    Raises:
        ValueError: All are missing.
    """
    known = _known(scores)
    lowest, highest = _bounds(known)
    ends = [_mean(_filled(scores, end)) for end in (lowest, highest)]
    return Interval(math.fsum(known) / len(known), ends[0][0], ends[1][1], _kind(known))


def paired_difference(before: Scores, after: Scores) -> Interval:
    """Return the mean of ``after - before`` over the documents with both scores, with its interval over all.

    Raises:
        ValueError: No document has both scores, or the numbers of documents differ.
    """
    pairs = list(zip(before, after, strict=True))
    known = [later - earlier for earlier, later in pairs if earlier is not None and later is not None]
    if not known:
        raise ValueError("no document has both scores")
    values = [*_known(before), *_known(after)]
    lowest, highest = _bounds(values)
    bounded = _is_bounded(values)
    worst = [a - b for b, a in zip(_filled(before, highest), _filled(after, lowest), strict=True)]
    best = [a - b for b, a in zip(_filled(before, lowest), _filled(after, highest), strict=True)]
    interval = _adjusted_difference if bounded else _student
    kind = PAIRED if bounded else STUDENT
    return Interval(math.fsum(known) / len(known), interval(worst)[0], interval(best)[1], kind)


def unpaired_difference(before: Scores, after: Scores) -> Interval:
    """Return the difference of the means of documents that are not the same, with its interval.

    Raises:
        ValueError: All scores of a side are missing.
    """
    known = [_known(before), _known(after)]
    lowest, highest = _bounds([*known[0], *known[1]])
    means = [math.fsum(values) / len(values) for values in known]
    low = _newcombe(_filled(before, highest), _filled(after, lowest))[0]
    high = _newcombe(_filled(before, lowest), _filled(after, highest))[1]
    return Interval(means[1] - means[0], low, high, UNPAIRED)


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> Interval:
    """Return ``sum(parts) / sum(wholes)``, such as bits per byte over texts of some bytes, with its interval.

    That of the mean of ``parts - ratio * wholes`` as a share of the mean of ``wholes`` (Cochran, Sampling Techniques,
    1977, chapter 6). Some dozen documents are needed before it covers as often as it says.

    Raises:
        ValueError: The sum of ``wholes`` is 0.
    """
    total = math.fsum(wholes)
    if not total:
        raise ValueError("all documents are empty")
    ratio = math.fsum(parts) / total
    scale = len(wholes) / total
    pairs = zip(parts, wholes, strict=True)
    low, high = _student([ratio + (part - ratio * whole) * scale for part, whole in pairs])
    return Interval(ratio, low, high, STUDENT)


def _known(scores: Iterable[float | None]) -> list[float]:
    known = [score for score in scores if score is not None]
    if not known:
        raise ValueError("all scores are missing")
    return known


def _filled(scores: Scores, value: float) -> list[float]:
    return [value if score is None else score for score in scores]


def _is_bounded(values: Sequence[float]) -> bool:
    """Whether the values are shares: from 0 to 1, and some at an end, where the spread of a sample is too small.

    Bits per byte may be below 1 in all documents, and two added ones of 0 and 1 would hide every difference.
    """
    return all(0 <= value <= 1 for value in values) and any(value in (0, 1) for value in values)


def _is_binary(values: Sequence[float]) -> bool:
    return all(value in (0, 1) for value in values)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the worst and the best that a missing score may be: for a metric without bounds, those seen."""
    return (0.0, 1.0) if _is_bounded(values) else (min(values), max(values))


def _kind(values: Sequence[float]) -> str:
    return WILSON if _is_binary(values) else ADJUSTED if _is_bounded(values) else STUDENT


Ends = tuple[float | None, float | None]


def _mean(values: Sequence[float]) -> Ends:
    if _is_binary(values):
        return _wilson(math.fsum(values), len(values))
    return _adjusted_mean(values) if _is_bounded(values) else _student(values)


def _wilson(successes: float, count: int) -> tuple[float, float]:
    share, square = successes / count, _Z * _Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count)) / (1 + square / count)
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == count else middle + half)


def _adjusted_mean(values: Sequence[float]) -> tuple[float, float]:
    low, high = _normal([*values, 0.0, 0.0, 1.0, 1.0])
    mean = math.fsum(values) / len(values)
    return max(0.0, min(low, mean)), min(1.0, max(high, mean))


def _adjusted_difference(values: Sequence[float]) -> tuple[float, float]:
    low, high = _normal([*values, -1.0, 1.0])
    mean = math.fsum(values) / len(values)
    return max(-1.0, min(low, mean)), min(1.0, max(high, mean))


def _normal(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    half = _Z * math.sqrt(variance / len(values))
    return mean - half, mean + half


def _student(values: Sequence[float]) -> Ends:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    if not squares:  # also one document: nothing is known of the spread
        return None, None
    degrees = len(values) - 1
    half = _student_quantile(degrees) * math.sqrt(squares / degrees / len(values))
    return mean - half, mean + half


def _student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's distribution, to three digits.

    By Abramowitz and Stegun, 26.7.5; the first two are exact.
    """
    if degrees <= 2:
        return math.tan(math.pi * CONFIDENCE / 2) if degrees == 1 else CONFIDENCE * math.sqrt(2 / (1 - CONFIDENCE**2))
    terms = (
        (_Z**3 + _Z) / 4,
        (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
        (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
        (79 * _Z**9 + 776 * _Z**7 + 1482 * _Z**5 - 1920 * _Z**3 - 945 * _Z) / 92160,
    )
    return _Z + math.fsum(term / degrees**power for power, term in enumerate(terms, 1))


def _newcombe(before: Sequence[float], after: Sequence[float]) -> Ends:
    means = [math.fsum(values) / len(values) for values in (before, after)]
    (low_before, high_before), (low_after, high_after) = _mean(before), _mean(after)
    if low_before is None or high_before is None or low_after is None or high_after is None:
        return None, None
    difference = means[1] - means[0]
    low = difference - math.hypot(means[1] - low_after, high_before - means[0])
    high = difference + math.hypot(high_after - means[1], means[0] - low_before)
    return low, high
