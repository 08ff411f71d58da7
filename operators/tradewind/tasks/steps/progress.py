"""What a try of a step's task has seen of its step so far. It travels through the triggerer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tradewind.records.leases.lease import Lease


@dataclass(frozen=True)
class Progress:
    """How far a try is. A look at the step ends with the task's result or with this: then the try looks again.

    Attributes:
        losses: How many attempts of this try went down without a fault of the step.
        without_keeper: How many of the last ones in a row ended before their driver had taken the lease over.
        waited_for: Somebody else's attempt whose end this try waited for.
    """

    losses: int = 0
    without_keeper: int = 0
    waited_for: int | None = None

    def after_loss(self, lease: Lease) -> Progress:
        """How far the try is once the attempt of ``lease`` is lost."""
        had_keeper = lease.incarnation is not None
        return replace(self, losses=self.losses + 1, without_keeper=0 if had_keeper else self.without_keeper + 1)

    @staticmethod
    def after_wait(event: Mapping[str, Any]) -> Progress:
        """How far a try is that has waited for the end of an attempt."""
        progress = Progress(**event["progress"])
        return replace(progress, waited_for=event["attempt"]) if event["is_theirs"] else progress
