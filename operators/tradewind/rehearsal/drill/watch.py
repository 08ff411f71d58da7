"""One disturbed run as it is seen from outside: each fault comes at its moment, and its recovery is timed.

A fault is over when training goes on: in other processes, for all that ends the ones at work; the next one waits for
that. So every figure belongs to one fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tradewind.rehearsal.drill.faults import Fault, PlannedFault
from tradewind.rehearsal.drill.sight import Sight
from tradewind.rehearsal.drill.stories import FaultStory, Injection


class Injects(Protocol):
    """Does what a schedule says."""

    @property
    def is_outage(self) -> bool: ...

    def inject(self, fault: PlannedFault, sight: Sight) -> Injection: ...


class Measures(Protocol):
    """Says what only the store knows; an injector is not believed."""

    def newest_checkpoint(self) -> int | None:
        """The step of the newest whole checkpoint."""

    def refused_requests(self) -> int:
        """How many requests the store has refused so far."""


@dataclass(frozen=True)
class _Open:
    """A fault that training has not recovered from."""

    fault: Fault
    before: Sight
    at: float
    story: FaultStory
    refused_before: int


class RunWatch:
    """What was seen of one run so far; ``see`` is given one look after the other.

    Args:
        faults: What is to come, in order.
        injector: Does it.
        store: Where the run's checkpoints are.
        say: Gets a line about everything that happens.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        faults: Sequence[PlannedFault],
        injector: Injects,
        store: Measures,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pending = list(faults)
        self._injector = injector
        self._store = store
        self._say = say
        self._clock = clock
        self._open: _Open | None = None
        self._closed: list[FaultStory] = []
        self._first_at: float | None = None
        self._last_at: float | None = None
        self.last_step = -1

    @property
    def training_s(self) -> float:
        """From the first step to the last, all interruptions included."""
        return (self._last_at or 0.0) - (self._first_at or 0.0)

    @property
    def stories(self) -> tuple[FaultStory, ...]:
        """All faults in order, also the one that is not over and those that never came."""
        never = [FaultStory(fault.kind.value, fault.step, "") for fault in self._pending]
        return (*self._closed, *([self._open.story] if self._open else []), *never)

    @property
    def open_for_s(self) -> float:
        """How long training has been waited for since the last fault; 0 while it goes on."""
        return self._clock() - self._open.at if self._open else 0.0

    def see(self, sight: Sight) -> None:
        """Take note of a look, and do what is due."""
        if sight.step is not None:
            self._note(sight)
        if self._open is not None:
            if self._is_over(self._open, sight):
                at = min((host.step_at for host in sight.hosts if host.step_at is not None), default=self._clock())
                story = self._close(self._open, at, sight.step)
                slices = ", ".join(sight.slices)
                self._say(f"step {sight.step}: training goes on after {story.recovery_s:.1f} s on {slices}")
        elif self._pending and sight.step is not None and sight.step >= self._pending[0].step:
            self._inject(self._pending.pop(0), sight)

    def finish(self, succeeded: bool) -> None:
        """The run is over. One that succeeded has outlived its last fault, also if it just did the few steps left."""
        if self._open is not None and succeeded:
            self._say(f"the run has ended {self.open_for_s:.1f} s after the fault")
            self._close(self._open, self._clock(), None)

    def _note(self, sight: Sight) -> None:
        at = max((host.step_at for host in sight.hosts if host.step_at is not None), default=self._clock())
        self._first_at = at if self._first_at is None else self._first_at
        if sight.step is not None and sight.step > self.last_step:
            self.last_step, self._last_at = sight.step, at

    def _inject(self, fault: PlannedFault, sight: Sight) -> None:
        checkpoint, refused, at = self._store.newest_checkpoint(), self._store.refused_requests(), self._clock()
        injection = self._injector.inject(fault, sight)
        self._say(f"step {sight.step}: {injection.what}")
        story = FaultStory(
            fault.kind.value,
            fault.step,
            injection.what,
            at_step=sight.step,
            at=at,
            victims=injection.victims,
            checkpoint=checkpoint if injection.damaged is None else injection.older,
            damaged=injection.damaged,
            lasts_s=injection.lasts_s,
        )
        self._open = _Open(fault.kind, sight, at, story, refused)

    def _is_over(self, opened: _Open, sight: Sight) -> bool:
        if self._injector.is_outage or sight.step is None:
            return False
        if opened.fault is Fault.STORE:
            return opened.before.step is None or sight.step > opened.before.step or sight.is_successor_of(opened.before)
        return sight.is_successor_of(opened.before)

    def _close(self, opened: _Open, at: float, step: int | None) -> FaultStory:
        refused = self._store.refused_requests() - opened.refused_before
        recovery_s = round(max(0.0, at - opened.at), 1)
        story = replace(opened.story, recovery_s=recovery_s, resumed_at=step, refused=refused)
        self._closed.append(story)
        self._open = None
        return story
