"""Find the score that the best fraction of a data set reaches, exactly, in bounded memory and three passes.

A pass counts scores by the first bits of their place in the order of all numbers, and so finds in which interval the
score is; the next pass divides that interval.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets import Dataset, flow_backend
from tradewind.datasets.files import join, read_json

_BITS: Final = 64
_PASSES: Final = (24, 44, 64)
_SIGN: Final = 1 << (_BITS - 1)


def find_threshold(scores: Dataset[float], fraction: float, folder: str) -> float | None:
    """Return the largest score that at least ``fraction`` of all scores reach; None without scores.

    ``folder`` keeps the result of each pass, which a next attempt does not repeat.
    """
    found: dict[str, Any] = {"interval": 0, "rank": None}
    known = 0
    for bits in _PASSES:
        count = _Histogram(bits, known, found["interval"])
        select = _Selecting(fraction, found["rank"])
        path = join(folder, f"{bits}-bits.jsonl")
        flow_backend().execute(scores.reduce(count, _sum).map(select).write_jsonl(path))
        found, known = read_json(path), bits
        if found["rank"] is None:
            return None
    return _number_at(found["interval"])


@dataclass(frozen=True)
class _Histogram:
    """Count the scores of an interval, whose first ``known`` bits are given, by their first ``bits`` bits."""

    bits: int
    known: int
    interval: int

    def __call__(self, scores: Iterator[float]) -> Counter[int]:
        places = map(_place_of, scores)
        inside = (place for place in places if place >> (_BITS - self.known) == self.interval)
        return Counter(place >> (_BITS - self.bits) for place in inside)


def _sum(histograms: Iterator[Counter[int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return total


@dataclass(frozen=True)
class _Selecting:
    """Choose the interval of the score with a rank from above, and its rank there; at first by the fraction."""

    fraction: float
    rank: int | None

    def __call__(self, histogram: Counter[int]) -> dict[str, Any]:
        total = sum(histogram.values())
        rank = max(1, int(self.fraction * total + 0.5)) if self.rank is None else self.rank
        for interval in sorted(histogram, reverse=True):
            if rank <= histogram[interval]:
                return {"interval": interval, "rank": rank, "scores": total}
            rank -= histogram[interval]
        return {"interval": 0, "rank": None, "scores": 0}


def _place_of(number: float) -> int:
    """Return the place of a number in the order of all."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", number + 0.0))
    return int(bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN)


def _number_at(place: int) -> float:
    bits = place ^ _SIGN if place & _SIGN else place ^ (2 * _SIGN - 1)
    return float(struct.unpack(">d", struct.pack(">Q", bits))[0])
