"""A pod leaves the slice on which it fails for another one, as long as there is another one.

A slice is suspected when the pod failed there without having made a step, or fell silent there, or failed there twice
alike. It is then the last choice: another slice that is free is taken first, and one that may come is waited for, but
not for ever. Nothing in here talks to Ray or to a clock.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final

from tradewind.runtime.pods.verdicts import Cause, Incident

ELSEWHERE_S: Final = 300.0
"""How long a pod waits for another slice than a suspected one that it could have."""


class Elsewhere(enum.Enum):
    """Whether a pod can go on without a slice that it suspects. The values end a sentence of the log."""

    FREE = "the pod goes on elsewhere"
    MAY_COME = "the pod waits for another, which may come"
    NOWHERE = "but there is no other, so the pod stays"


def is_suspicious(incident: Incident, *, has_stepped: bool) -> bool:
    """Whether an attempt that ended like this speaks against the slice that it names."""
    if incident.cause.is_preemption or incident.slice_name is None:
        return False
    return incident.cause is Cause.SILENT or not has_stepped


def elsewhere(
    suspected: Collection[str],
    *,
    own: Collection[str],
    free: Collection[str],
    known: Collection[str],
    smallest: int,
    may_grow: bool,
) -> Elsewhere:
    """What a pod can do without its suspected slices.

    Args:
        suspected: The slices to do without.
        own: Those that it holds.
        free: Those that it could take now.
        known: Those of its type that the cluster has or had: taken by others, or gone and perhaps replaced.
        smallest: How many slices it needs at least.
        may_grow: Whether the cluster adds slices by itself.
    """
    suspects = set(suspected)
    if len((set(own) | set(free)) - suspects) >= smallest:
        return Elsewhere.FREE
    may_come = may_grow or len((set(own) | set(known)) - suspects) >= smallest
    return Elsewhere.MAY_COME if may_come else Elsewhere.NOWHERE


class Suspects:
    """The slices that a pod avoids, in the order of what happens to it."""

    def __init__(self, smallest: int) -> None:
        self._smallest = smallest
        self._waits = True
        self.names: set[str] = set()
        self.nodes: set[str] = set()
        """The ids of their nodes."""

    @property
    def elsewhere_s(self) -> float:
        """How long to wait for another slice: not again once it was in vain."""
        return ELSEWHERE_S if self._waits else 0.0

    def reserved(self, slices: Collection[str]) -> None:
        """The pod has these slices now."""
        if self.names:
            self._waits = not self.names & set(slices)

    def replaced(self, slices: Collection[str]) -> None:
        """The machines of these slices are gone, and what comes under their names is new."""
        self.names -= set(slices)

    def elsewhere(
        self, incident: Incident, own: Collection[str], free: Collection[str], known: Collection[str], may_grow: bool
    ) -> Elsewhere:
        """What the pod can do without these slices and the one that the incident names."""
        if incident.cause.is_preemption or incident.slice_name is None:
            return Elsewhere.NOWHERE
        return elsewhere(
            {*self.names, incident.slice_name},
            own=own,
            free=free,
            known=known if self._waits else (),
            smallest=self._smallest,
            may_grow=may_grow and self._waits,
        )

    def add(self, name: str, nodes: Collection[str]) -> None:
        """Avoid this slice from now on."""
        self.names.add(name)
        self.nodes |= set(nodes)
