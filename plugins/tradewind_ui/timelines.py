"""Timeline of the slices or hosts of a step's newest attempt, as an escaped table.

The timeline is read from the store. The page is shown also if the store fails.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from tradewind.deployment.fleet import deployment_roots
from tradewind.plans.estimates import format_hours
from tradewind.records.attempts import attempt_folder, attempt_numbers
from tradewind.runtime.pods.timeline import TIMELINE_FILE, TimelineEvent, read_timeline
from tradewind.storage import StorageError
from tradewind.tasks.pod_summary import format_summary
from tradewind.text import pluralize

TITLES = ("Time", "After", "Event", "Slices", "What happened")
MAX_EVENTS = 500
MIN_PAUSE_S = 0.05
MAX_TEXT = 4_000
"""Characters of a text that a page shows. Any task can write long XComs, and the browser renders all of it."""
MAX_CELL = 1_000
"""Characters of a cell: any writer to the bucket controls the content."""


def escaped(text: str, limit: int = MAX_TEXT) -> str:
    """Escape at most ``limit`` characters of untrusted ``text`` for HTML."""
    return escape(text if len(text) <= limit else f"{text[:limit]}…")


def timeline_of(output_path: str) -> str:
    """Show the newest attempt's timeline; empty if it has none, an error text if the store fails."""
    try:
        deployment_roots().check(output_path, "The output path of this step")  # an XCom can be forged
    except StorageError as error:
        return f"<p class=warning>The timeline is not read. {escaped(str(error))}</p>"
    try:
        numbers = attempt_numbers(output_path)
        number = numbers[-1] if numbers else 0
        events = read_timeline(posixpath.join(attempt_folder(output_path, number), TIMELINE_FILE)) if number else []
        return table(number, events, format_summary(events, output_path)) if events else ""
    except Exception as error:  # every store has its own errors
        return f"<p class=warning>The timeline cannot be read now: {escaped(type(error).__name__)}</p>"


def table(attempt: int, events: Sequence[TimelineEvent], summary: str | None) -> str:
    """Show the events in order, below a summary."""
    start = max(0, len(events) - MAX_EVENTS)
    rows = (_row(events[index], events[index - 1] if index else None) for index in range(start, len(events)))
    head = "".join(f"<th>{title}</th>" for title in TITLES)
    return (
        f"<h2>Attempt {attempt}</h2>"
        + (f"<p>{escaped(summary)}</p>" if summary else "")
        + (f"<p>The first {start} events are left out.</p>" if start else "")
        + f"<table class=timeline><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _row(event: TimelineEvent, previous: TimelineEvent | None) -> str:
    after_s = event.at - previous.at if previous is not None else 0.0
    cells = (
        datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        format_hours(after_s / 3600) if after_s >= MIN_PAUSE_S else "",
        event.name,
        _slices(event),
        _what(event),
    )
    return f"<tr>{''.join(f'<td>{escaped(str(cell), MAX_CELL)}</td>' for cell in cells)}</tr>"


def _what(event: TimelineEvent) -> str:
    """Describe an event: its cause, its sentence, the start time, and the training's step."""
    parts = [event.cause, event.sentence]
    if event.grows_to is not None:
        parts.append(f"grows to {pluralize(event.grows_to, 'slice')}")
    if event.start_s is not None:
        parts.append(f"{event.start_s:.1f} s to start")
    if event.step is not None:
        saved = event.checkpoint_step
        parts.append(f"at step {event.step}" + (f", saved at step {saved}" if saved is not None else ""))
    return ". ".join(str(part).rstrip(".") for part in parts if part)


def _slices(event: TimelineEvent) -> str:
    if event.slices:
        return ", ".join(map(str, event.slices))
    return str(event.slice_name or event.group or event.num_slices or "")
