"""Fault schedule from a seed: kinds of faults, their order, and a training step for each; and the effects of a fault.

Moments are training steps, not seconds, so a seed hits the same points of a run on fast and slow machines. Consecutive
seeds deal from one shuffled deck after the other: enough of them to deal a deck cover every kind of fault.
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
"""Fraction of the run at its beginning and end without faults: there a fault could lose nothing."""


class UnknownFaultError(ValueError):
    """The kind of fault is unknown."""


class Fault(Enum):
    """Kinds of faults; the value is the name on the command line."""

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
    """The training process of one host is frozen: no process dies, and training stalls."""
    STOCK_OUT = "stock-out"
    """SIGKILL of every slice, and Google has no capacity for a while."""
    CHECKPOINT = "checkpoint"
    """The newest complete checkpoint is damaged, and the slice is killed, so that a restore needs it."""
    STORE = "store"
    """Cloud Storage answers every request with 503 for a while."""


@dataclass(frozen=True)
class PlannedFault:
    """A fault and its training step."""

    kind: Fault
    step: int
    """The fault comes as soon as training has done this step."""
    host: int
    """The affected host of the slice, for faults that hit one."""


def fault_named(name: str) -> Fault:
    """Return the fault of that name.

    Raises:
        UnknownFaultError: No fault has that name.
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
    """Return the faults of one seed in order, for a training of ``steps`` steps on ``hosts`` hosts.

    The head's death comes last: the hosts work on until fencing stops them, and a short training ends in that time.

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
    """Deal one shuffled deck after the other, without end."""
    deck = 0
    while True:
        cards = list(kinds)
        random.Random(f"deck {deck}").shuffle(cards)
        yield from cards
        deck += 1


@dataclass(frozen=True)
class Injection:
    """Effect of an injected fault.

    Attributes:
        what: Description.
        victims: The slices, processes or servers that were hit; empty without a target.
        damaged: Step of the damaged checkpoint.
        older: Step of the newest complete checkpoint left.
        lasts_s: Duration.
    """

    what: str
    victims: tuple[str, ...] = ()
    damaged: int | None = None
    older: int | None = None
    lasts_s: float = 0.0


@dataclass(frozen=True)
class FaultResult:
    """One scheduled fault and its consequences."""

    fault: str
    planned_step: int
    what: str
    """Description of the effect; empty if the run had ended before the fault's step."""
    at_step: int | None = None
    """Last step completed before the fault."""
    recovery_s: float | None = None
    """From the fault to the first later training step, or to the end of a run without any; None if failed."""
    resumed_at: int | None = None
    """First observed step after the fault."""
    at: float | None = None
    """Time of the fault, in seconds since the epoch."""
    victims: tuple[str, ...] = ()
    checkpoint: int | None = None
    """Step of the newest complete checkpoint at the fault; None if there was none."""
    damaged: int | None = None
    lasts_s: float = 0.0
    refused: int = 0
    """Number of requests that the store refused until the fault ended."""

    @property
    def lost_steps(self) -> int | None:
        """Maximum number of repeated steps: the first step after the fault is observed a moment late."""
        if self.at_step is None or self.resumed_at is None:
            return None
        return max(0, self.at_step + 1 - self.resumed_at)

    @property
    def may_lose(self) -> int | None:
        """Allowed number of repeated steps: all since the newest checkpoint, and none after a notice."""
        if self.at_step is None:
            return None
        if Fault(self.fault) is Fault.DRAIN:
            return 0
        return max(0, self.at_step - (-1 if self.checkpoint is None else self.checkpoint))
