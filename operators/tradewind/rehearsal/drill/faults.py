"""A bad night drawn from a seed: which faults come, in which order, and at which training step each.

Moments are training steps, not seconds, so a seed hits the same places of a run on a quick machine and on a slow one.
Seeds that follow each other deal from one shuffled deck after the other, so that as many of them as it takes to deal a
deck bring every kind of fault.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

FAULTS_PER_SEED: Final = 3
_QUIET_SHARE: Final = 0.1
"""Of the run, at its beginning and at its end: a fault there meets nothing that could be lost."""


class UnknownFaultError(ValueError):
    """A kind of fault that there is not."""


class Fault(Enum):
    """What can happen; the value is the name on the command line."""

    HOST = "host"
    """SIGKILL of all processes of one host of the slice that trains."""
    SLICE = "slice"
    """SIGKILL of all processes of all hosts of that slice."""
    DRAIN = "drain"
    """The slice is preempted with notice: SIGKILL follows at the deadline, whatever runs then."""
    DRIVER = "driver"
    """SIGKILL of the step driver on the head."""
    HEAD = "head"
    """SIGKILL of the Ray head with all that runs on it; it starts again at the same address."""
    HANG = "hang"
    """The training process of one host is frozen: nothing dies, and nothing goes on."""
    STOCK_OUT = "stock-out"
    """SIGKILL of every slice, and Google has none left for a while."""
    CHECKPOINT = "checkpoint"
    """The newest complete checkpoint is damaged, and the slice is killed so that it is wanted."""
    STORE = "store"
    """Cloud Storage answers 503 to everything for a while."""

    @property
    def preempts(self) -> bool:
        """Whether a slice is lost by it."""
        return self in (Fault.HOST, Fault.SLICE, Fault.DRAIN, Fault.STOCK_OUT, Fault.CHECKPOINT)

    @property
    def ends_attempt(self) -> bool:
        """Whether the driver is lost by it, so that another attempt must follow."""
        return self in (Fault.DRIVER, Fault.HEAD)


@dataclass(frozen=True)
class PlannedFault:
    """A fault and its moment."""

    kind: Fault
    step: int
    """It comes as soon as training has done this step."""
    host: int
    """Which host of the slice is meant, where one is."""


def fault_named(name: str) -> Fault:
    """The fault of that name.

    Raises:
        UnknownFaultError: There is none.
    """
    try:
        return Fault(name)
    except ValueError:
        known = ", ".join(fault.value for fault in Fault)
        raise UnknownFaultError(f"There is no fault {name!r}; there are {known}.") from None


def schedule(
    seed: int,
    kinds: Sequence[Fault] = tuple(Fault),
    *,
    steps: int,
    hosts: int = 2,
    count: int = FAULTS_PER_SEED,
) -> tuple[PlannedFault, ...]:
    """The faults of one seed in their order, spread over a training of so many ``steps`` on so many ``hosts``.

    The head's death comes last: the hosts work on until they are cut off, and a short training ends in that time.

    Raises:
        ValueError: There are no kinds, the seed or the count is negative, or the training is too short for them.
    """
    if not kinds or seed < 0 or count < 0:
        raise ValueError(f"seed={seed}, count={count} and {len(kinds)} kinds of faults make no schedule.")
    first, last = round(steps * _QUIET_SHARE), round(steps * (1 - _QUIET_SHARE))
    if last - first < count:
        raise ValueError(f"A training of {steps} steps is too short for {count} faults.")
    draw = random.Random(f"moments {seed}")
    bounds = [first + (last - first) * part // max(count, 1) for part in range(count + 1)]
    dealt = islice(_dealt(kinds), seed * count, (seed + 1) * count)
    hand = sorted(dealt, key=lambda kind: kind is Fault.HEAD)
    return tuple(
        PlannedFault(kind, draw.randrange(start, end), draw.randrange(hosts))
        for kind, start, end in zip(hand, bounds[:-1], bounds[1:], strict=True)
    )


def _dealt(kinds: Sequence[Fault]) -> Iterator[Fault]:
    """One shuffled deck after the other, without end."""
    deck = 0
    while True:
        cards = list(kinds)
        random.Random(f"deck {deck}").shuffle(cards)
        yield from cards
        deck += 1
