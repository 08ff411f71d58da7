"""What a step on slices went through, in one line for the task's log; nothing if it never started again."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tradewind.plans.estimates import hours_in_words
from tradewind.plans.phrases import count_text
from tradewind.records.attempts import attempt_folder
from tradewind.records.errors import StoreUnavailableError
from tradewind.runtime.pods.timeline import TIMELINE_FILE, read_timeline, summary
from tradewind.steps import Hosts, Resources, TpuSlice

_ENDS: Final = ("preempted", "failed", "ended", "scaled", "done")


def story_of(output_path: str, attempt: int, resources: Resources | None) -> str | None:
    """The story of an attempt's pod; None if it had none, if nothing happened, or if nobody can tell."""
    if not isinstance(resources, (TpuSlice, Hosts)):
        return None
    try:
        events = read_timeline(posixpath.join(attempt_folder(output_path, attempt), TIMELINE_FILE))
    except (StoreUnavailableError, ValueError):  # the step's end matters more than how it got there
        return None
    return in_words(events)


def in_words(events: Sequence[Mapping[str, Any]]) -> str | None:
    """``2 preemptions, 1 failure, 73 steps lost, waited 1 min, goodput 0.91``; None if it never started again."""
    found = summary(events)
    if not found.restarts and not found.preemptions and not found.failures:
        return None
    parts = [count_text(found.preemptions, "preemption"), count_text(found.failures, "failure")]
    parts.append(f"{count_text(found.lost_steps, 'step')} lost")
    if found.waiting_s >= 1:
        parts.append(f"waited {hours_in_words(found.waiting_s / 3600)}")
    share = goodput(events)
    return ", ".join([*parts, f"goodput {share:.2f}"] if share is not None else parts)


def goodput(events: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of the time since the first start in which steps were made that count; None where none was counted.

    Of a start that ended between two checkpoints, the steps that were lost are taken to have lasted as long as the
    others.
    """
    wall_s, productive_s = summary(events).wall_s, 0.0
    began: Mapping[str, Any] | None = None
    for event in events:
        if event["event"] == "first_step":
            began = event
        elif began is not None and event["event"] in _ENDS:
            productive_s += (float(event["at"]) - float(began["at"])) * _share_kept(began.get("step"), event)
            began = None
    return productive_s / wall_s if productive_s and wall_s else None


def _share_kept(first_step: int | None, end: Mapping[str, Any]) -> float:
    last, saved = end.get("step"), end.get("checkpoint_step")
    if first_step is None or last is None or last <= first_step or end["event"] == "done":
        return 1.0
    return min(1.0, max(0.0, float((saved or 0) - first_step) / float(last - first_step)))
