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


# One fault of a drill, as it was seen from outside: what was hit, when, and where training went on.


@dataclass(frozen=True)
class Injection:
    """What an injector did.

    Attributes:
        what: In words.
        victims: The slices, processes or servers that were hit; none if there was nothing to hit.
        damaged: The step of the checkpoint that was damaged.
        older: The step of the newest whole checkpoint that is left then.
        lasts_s: How long it lasts.
    """

    what: str
    victims: tuple[str, ...] = ()
    damaged: int | None = None
    older: int | None = None
    lasts_s: float = 0.0


@dataclass(frozen=True)
class FaultResult:
    """One fault of the schedule and what followed."""

    fault: str
    planned_step: int
    what: str
    """What was done, in words; empty when the run had ended before its moment."""
    at_step: int | None = None
    """The last step that was done before."""
    recovery_s: float | None = None
    """From the fault to the first training step after it, or to the end of a run without any; None if it failed."""
    resumed_at: int | None = None
    """The first step after it, as far as it was seen."""
    at: float | None = None
    """When it came, in seconds since the epoch."""
    victims: tuple[str, ...] = ()
    checkpoint: int | None = None
    """The step of the newest whole checkpoint when it came; None if there was none."""
    damaged: int | None = None
    lasts_s: float = 0.0
    refused: int = 0
    """How many requests the store refused until it was over."""

    @property
    def lost_steps(self) -> int | None:
        """How many steps were done again, at most: the first one after the fault is seen a moment late."""
        if self.at_step is None or self.resumed_at is None:
            return None
        return max(0, self.at_step + 1 - self.resumed_at)

    @property
    def may_lose(self) -> int | None:
        """How many steps may be done again: all since the newest checkpoint, and none after a notice."""
        if self.at_step is None:
            return None
        if Fault(self.fault) is Fault.DRAIN:
            return 0
        return max(0, self.at_step - (-1 if self.checkpoint is None else self.checkpoint))
