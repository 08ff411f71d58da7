"""What a run wrote down about itself: attempts, preemptions, failures, and how much of its time counted.

Read from the files beside the outputs (``.attempts/``, ``metrics.jsonl``), whichever run made them. One that cannot be
read is named, and the others count.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.cloud_tpu.goodput import METRICS_FILE, CountedSteps, goodput, metrics_rows
from tradewind.runtime.pods.timeline import TimelineEvent, read_timeline
from tradewind.storage import file_system_at
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_text

_ATTEMPT: Final = re.compile(r"(?P<output>.*)/\.attempts/\d+\.json")
_TIMELINE: Final = re.compile(r"(?P<output>.*)/\.attempts/(?P<attempt>\d+)/timeline\.json")


@dataclass(frozen=True)
class PodEvent(TimelineEvent):
    """One event of the timeline of a run's pod."""

    attempt: int = 1
    output: str = ""
    """Whose pod it was."""

    @property
    def is_end(self) -> bool:
        """Whether the processes of a pod ended before they were done."""
        return self.name in ("preempted", "failed")


@dataclass(frozen=True)
class RunRecord:
    """The outputs of one run that were made on pods, all attempts together."""

    attempts: int = 0
    preemptions: int = 0
    failures: int = 0
    causes: tuple[str, ...] = ()
    """Of preemptions and failures, in order."""
    wall_s: float = 0.0
    """From the first start of the processes to the last event, of all outputs together."""
    productive_s: float = 0.0
    """In steps that count, each once."""
    events: tuple[PodEvent, ...] = ()
    """Of all pods, in order."""
    unread: tuple[str, ...] = ()
    """Why a timeline or metrics could not be read, a sentence or two for each."""

    @property
    def ends(self) -> tuple[PodEvent, ...]:
        """The preemptions and failures."""
        return tuple(event for event in self.events if event.is_end)

    @property
    def goodput(self) -> float | None:
        """As ``cloud_tpu.goodput`` has it, over all outputs; None if no training measured its steps."""
        return goodput(self.productive_s, self.wall_s) if self.productive_s else None

    def to_json(self) -> dict[str, Any]:
        share = None if self.goodput is None else round(self.goodput, 3)
        fields = {name: value for name, value in asdict(self).items() if name != "events"}
        return {**fields, "wall_s": round(self.wall_s, 1), "goodput": share}


def read_run_record(prefix: str) -> RunRecord:
    """The record of the run whose outputs are below ``prefix``, on any fsspec store."""
    fs, root = file_system_at(prefix)
    fs.invalidate_cache()
    paths = [str(path) for path in fs.find(root)]
    timelines = [found for path in paths if (found := _TIMELINE.fullmatch(path))]
    outputs = {found["output"] for found in timelines}
    events: list[PodEvent] = []
    productive_s, unread = 0.0, []
    for found in timelines:
        try:
            rows = read_timeline(posixpath.join(prefix, posixpath.relpath(found.string, root)))
        except BadRecordError as error:
            unread.append(str(error))
        else:
            events += [PodEvent(**vars(row), attempt=int(found["attempt"]), output=found["output"]) for row in rows]
    for output in sorted(outputs):
        try:
            text = read_text(posixpath.join(prefix, posixpath.relpath(output, root), METRICS_FILE))
        except BadRecordError as error:
            unread.append(str(error))
        else:
            productive_s += CountedSteps(metrics_rows(text or "")).seconds
    attempts = [path for path in paths if (found := _ATTEMPT.fullmatch(path)) and found["output"] in outputs]
    return record_of(events, len(attempts), productive_s, unread)


def record_of(events: Iterable[PodEvent], attempts: int, productive_s: float, unread: Iterable[str] = ()) -> RunRecord:
    """The same from what the timelines say."""
    ordered = sorted(events, key=lambda event: event.at)
    ends = [event for event in ordered if event.is_end]
    outputs = {event.output for event in ordered}
    return RunRecord(
        attempts=attempts,
        preemptions=sum(event.name == "preempted" for event in ends),
        failures=sum(event.name == "failed" for event in ends),
        causes=tuple(f"{event.name}: {event.cause or 'unknown'}" for event in ends),
        wall_s=sum(_wall_s([event for event in ordered if event.output == output]) for output in outputs),
        productive_s=productive_s,
        events=tuple(ordered),
        unread=tuple(unread),
    )


def _wall_s(ordered: Sequence[PodEvent]) -> float:
    """Of one output's events: trainings side by side have each their own time."""
    started = next((event.at for event in ordered if event.name == "started"), None)
    return 0.0 if started is None else ordered[-1].at - started
