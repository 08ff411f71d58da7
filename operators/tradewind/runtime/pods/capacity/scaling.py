"""A pod of several sizes starts with the largest that is there, and grows back when slices return.

Growing means starting anew from the newest checkpoint, so it is rare: free slices are looked for at most every
``look_s``, and the size changes at most every ``rescale_s``, except after a loss, when the pod starts anew anyway.
Nothing in here talks to Ray or to a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ScalingTimes:
    """How often a pod that runs with fewer slices than it could tries to grow. The defaults are Marin's."""

    look_s: float = 3 * 3600
    rescale_s: float = 12 * 3600

    def __post_init__(self) -> None:
        for name in ("look_s", "rescale_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: give a number of seconds, 0 or more.")


def sizes_of(num_slices: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers of slices that a pod may have, largest first. Raises ValueError for what is no number of slices."""
    if isinstance(num_slices, int) and not isinstance(num_slices, bool):
        return (_size(num_slices, num_slices),)
    if isinstance(num_slices, (str, bytes)) or not isinstance(num_slices, Sequence) or not num_slices:
        raise ValueError(f"num_slices={num_slices!r}: give a number of slices, or a list of numbers such as [4, 2, 1].")
    return tuple(sorted({_size(size, num_slices) for size in num_slices}, reverse=True))


def _size(size: object, given: object) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"num_slices={given!r}: {size!r} is no number of slices; give whole numbers from 1 on.")
    return size


class Flexible:
    """Which size to take, and when to try a larger one. All times are of one clock of the caller's."""

    def __init__(self, sizes: Sequence[int], times: ScalingTimes) -> None:
        self._sizes = sizes_of(sizes)
        self._times = times
        self._size: int | None = None
        self._scaled_at = 0.0
        self._looked_at = 0.0

    @property
    def largest(self) -> int:
        return self._sizes[0]

    @property
    def smallest(self) -> int:
        return self._sizes[-1]

    def first(self, free: int) -> int | None:
        """The size to start with, at the beginning or after a loss; None if not even the smallest is free."""
        return next((size for size in self._sizes if size <= free), None)

    def running(self, size: int, now: float) -> None:
        """The pod has started with ``size`` slices."""
        if size not in self._sizes:
            raise ValueError(f"A pod of {size} slices was started, but num_slices={list(self._sizes)}.")
        if size != self._size:
            self._size, self._scaled_at = size, now
            self._looked_at = now

    def next_look(self, now: float) -> float | None:
        """When to look for free slices, ``now`` at the earliest; None if the pod cannot grow."""
        if self._size is None or self._size == self.largest:
            return None
        return max(now, self._looked_at + self._times.look_s, self._scaled_at + self._times.rescale_s)

    def grow_to(self, free: int, now: float) -> int | None:
        """The size to start anew with, given how many slices are free besides its own; None to go on as it is.

        This was a look: the next comes after ``look_s``, also when the slices are gone before they are reserved.
        """
        due = self.next_look(now)
        if due is None or now < due or self._size is None:
            return None
        self._looked_at = now
        larger = self.first(self._size + free)
        return larger if larger is not None and larger > self._size else None
