"""What a run wrote down about itself: attempts, preemptions, failures, and how much of its time counted.

Read from the files beside the outputs (``.attempts/``, ``metrics.jsonl``), whichever run made them.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.cloud_tpu.goodput import METRICS_FILE, CountedSteps, goodput, metrics_rows
from tradewind.storage import file_system_at

_ATTEMPT: Final = re.compile(r"(?P<output>.*)/\.attempts/\d+\.json")
_TIMELINE: Final = re.compile(r"(?P<output>.*)/\.attempts/(?P<attempt>\d+)/timeline\.json")


@dataclass(frozen=True)
class PodEvent:
    """One event of a pod's timeline."""

    attempt: int
    at: float
    """Seconds since the epoch."""
    name: str
    cause: str | None = None
    slice_name: str | None = None
    step: int | None = None
    output: str = ""
    """Whose pod it was."""

    @property
    def is_end(self) -> bool:
        """Whether the processes of a pod ended before they were done."""
        return self.name in ("preempted", "failed")

    @staticmethod
    def of(output: str, attempt: int, event: Mapping[str, Any]) -> PodEvent:
        """The event as the timeline of an attempt has it."""
        at = float(event["at"])
        name, cause, hit, step = event["event"], event.get("cause"), event.get("slice"), event.get("step")
        return PodEvent(attempt, at, name, cause, hit, step, output)


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
    events = [
        PodEvent.of(found["output"], int(found["attempt"]), event)
        for found in timelines
        for event in json.loads(fs.cat_file(found.string))
    ]
    attempts = [path for path in paths if (found := _ATTEMPT.fullmatch(path)) and found["output"] in outputs]
    metrics = [path for path in (posixpath.join(output, METRICS_FILE) for output in outputs) if path in set(paths)]
    productive = sum(CountedSteps(metrics_rows(fs.cat_file(path).decode())).seconds for path in metrics)
    return record_of(events, len(attempts), productive)


def record_of(events: Iterable[PodEvent], attempts: int, productive_s: float) -> RunRecord:
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
    )


def _wall_s(ordered: Sequence[PodEvent]) -> float:
    """Of one output's events: trainings side by side have each their own time."""
    started = next((event.at for event in ordered if event.name == "started"), None)
    return 0.0 if started is None else ordered[-1].at - started
