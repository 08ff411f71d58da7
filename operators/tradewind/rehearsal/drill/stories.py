"""One fault of a drill, as it was seen from outside: what was hit, when, and where training went on."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.rehearsal.drill.faults import Fault


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
class FaultStory:
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
