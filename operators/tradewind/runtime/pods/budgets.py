"""Budgets of preemptions and of failures: a pod gives up when one of them is used up.

Each attempt that ended is charged once, to the budget of its cause. A repeated failure ends the pod early: the same
traceback twice, with no new checkpoint between the two, would only repeat again. If both were on the same slice, that
slice may be the reason, so the rule applies only while no other slice is available.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from tradewind.runtime.pods.verdicts import Incident
from tradewind.steps.resources import DEFAULT_MAX_FAILURES, DEFAULT_MAX_PREEMPTIONS
from tradewind.text import pluralize

_MAX_LATEST: Final = 5

_CHANGING: Final = re.compile(
    r"\b0x[0-9a-f]+\b|\b[0-9a-f]{16,}\b"  # addresses of objects, digests
    r"|\b\d+(\.\d+){3}(:\d+)?\b"  # addresses of hosts
    r"|\bpid[=: ]+\d+|\b\d{5,}\b"  # process ids, ports, times
    r"|(?<=/)tmp\w{6,}|\bsession_[\d_-]+",  # folders of one run
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Budgets:
    """How often a pod may start again: N means N + 1 attempts, as in Marin."""

    max_preemptions: int = DEFAULT_MAX_PREEMPTIONS
    max_failures: int = DEFAULT_MAX_FAILURES


@dataclass(frozen=True)
class EndedAttempt:
    """One ended attempt, for the history."""

    at: float
    incident: Incident
    progress: str | None
    """The newest checkpoint at that moment."""


@dataclass(frozen=True)
class History:
    """The counts of a pod's preemptions and failures, and its last few attempts."""

    preemptions: int = 0
    failures: int = 0
    latest: tuple[EndedAttempt, ...] = ()
    last_failure: EndedAttempt | None = None
    is_repeated: bool = False
    """The last failure equals the one before, without a new checkpoint between the two."""
    is_repeated_here: bool = False
    """The same, but both were on one slice, which may be the reason, and another slice is available."""

    def after(self, incident: Incident, at: float, progress: str | None = None, *, has_others: bool = False) -> History:
        """Return the history with one more attempt, which ended with ``incident`` at epoch second ``at``.

        ``has_others``: another slice than the incident's is free or may become so.
        """
        ended = EndedAttempt(at, incident, progress)
        latest = (*self.latest, ended)[-_MAX_LATEST:]
        if incident.cause.is_preemption:
            return replace(self, preemptions=self.preemptions + 1, latest=latest)
        is_same = self.last_failure is not None and _is_same_failure(self.last_failure, ended)
        name, last = incident.slice_name, self.last_failure
        here = has_others and last is not None and name is not None and last.incident.slice_name == name
        return replace(
            self,
            failures=self.failures + 1,
            latest=latest,
            last_failure=ended,
            is_repeated=is_same and not here,
            is_repeated_here=is_same and here,
        )

    def end(self, budgets: Budgets) -> str | None:
        """Return why there is no further attempt, with the history in words; None if there is one."""
        if self.preemptions > budgets.max_preemptions:
            why = f"It was preempted {_times(self.preemptions)}, and max_preemptions={budgets.max_preemptions}."
        elif self.failures > budgets.max_failures:
            why = f"It failed {_times(self.failures)}, and max_failures={budgets.max_failures}."
        elif self.is_repeated:
            why = "It failed twice with the same traceback, and no new checkpoint between the two."
        else:
            return None
        return f"{why} {self}"

    def __str__(self) -> str:
        """Return ``3 preemptions, 2 failures: ...``, the latest attempts with their times."""
        counts = f"{pluralize(self.preemptions, 'preemption')}, {pluralize(self.failures, 'failure')}"
        if not self.latest:
            return f"{counts}."
        before = self.preemptions + self.failures - len(self.latest)
        parts = [f"{before} before"] if before else []
        for ended in self.latest:
            at = datetime.fromtimestamp(ended.at, UTC)
            parts.append(f"{at:%Y-%m-%dT%H:%M:%SZ} {ended.incident.sentence.rstrip('.')}")
        return f"{counts}: {'; '.join(parts)}."


class PodGivenUpError(RuntimeError):
    """A budget is used up, or the same failure came twice; no process of the pod is left."""

    def __init__(self, message: str, incident: Incident, history: History) -> None:
        super().__init__(message)
        self.incident = incident
        """The last incident."""
        self.history = history

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.incident, self.history)


def _is_same_failure(ended: EndedAttempt, other: EndedAttempt) -> bool:
    first, second = ended.incident.traceback, other.incident.traceback
    if first is None or second is None or ended.progress != other.progress:
        return False
    return ended.incident.cause is other.incident.cause and normalize_traceback(first) == normalize_traceback(second)


def normalize_traceback(traceback: str) -> str:
    """Return ``traceback`` without what differs between runs of the same error: addresses, process ids, folders."""
    return _CHANGING.sub("·", traceback)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
