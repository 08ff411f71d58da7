"""What happened to the slices or hosts of a step's newest attempt, as a table. Whatever it says is escaped.

The attempt's file is read from the store, which must never keep the page from being shown.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from tradewind.operators.deployment_roots import deployment_roots
from tradewind.operators.pod_story import in_words
from tradewind.plans.estimates import hours_in_words
from tradewind.plans.phrases import count_text
from tradewind.records.attempts import attempt_folder, attempt_numbers
from tradewind.runtime.pods.timeline import TIMELINE_FILE, read_timeline
from tradewind.storage import StorageError

TITLES = ("Time", "After", "Event", "Slices", "What happened")
MOST_EVENTS = 500
SHORTEST_S = 0.05


def timeline_of(output_path: str) -> str:
    """The newest attempt at an output; empty when it has no timeline, a sentence when the store does not tell."""
    try:
        deployment_roots().check(output_path, "The output path of this step")  # an XCom can be forged
    except StorageError as error:
        return f"<p class=warning>The timeline is not read. {escape(str(error))}</p>"
    try:
        numbers = attempt_numbers(output_path)
        number = numbers[-1] if numbers else 0
        events = read_timeline(posixpath.join(attempt_folder(output_path, number), TIMELINE_FILE)) if number else []
        return table(number, events, in_words(events, output_path)) if events else ""
    except Exception as error:  # every store has errors of its own
        return f"<p class=warning>The timeline cannot be read now: {escape(type(error).__name__)}</p>"


def table(attempt: int, events: Sequence[Mapping[str, Any]], story: str | None) -> str:
    """The events in order, under a line that sums them up."""
    start = max(0, len(events) - MOST_EVENTS)
    rows = (_row(events[index], events[index - 1] if index else None) for index in range(start, len(events)))
    head = "".join(f"<th>{title}</th>" for title in TITLES)
    return (
        f"<h2>Attempt {attempt}</h2>"
        + (f"<p>{escape(story)}</p>" if story else "")
        + (f"<p>The first {start} events are left out.</p>" if start else "")
        + f"<table class=timeline><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _row(event: Mapping[str, Any], previous: Mapping[str, Any] | None) -> str:
    at = float(event["at"])
    after = at - float(previous["at"]) if previous is not None else 0.0
    cells = (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        hours_in_words(after / 3600) if after >= SHORTEST_S else "",
        event["event"],
        _slices(event),
        _what(event),
    )
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def _what(event: Mapping[str, Any]) -> str:
    """The cause of an event and its sentence, how long it took to start, and where the training was."""
    parts = [event.get("cause"), event.get("sentence")]
    if event.get("to") is not None:
        parts.append(f"grows to {count_text(event['to'], 'slice')}")
    if event.get("start_s") is not None:
        parts.append(f"{event['start_s']:.1f} s to start")
    if event.get("step") is not None:
        saved = event.get("checkpoint_step")
        parts.append(f"at step {event['step']}" + (f", saved at step {saved}" if saved is not None else ""))
    return ". ".join(str(part).rstrip(".") for part in parts if part)


def _slices(event: Mapping[str, Any]) -> str:
    names = event.get("slices") or event.get("slice") or event.get("group") or event.get("num_slices") or ""
    return ", ".join(map(str, names)) if isinstance(names, (list, tuple)) else str(names)
