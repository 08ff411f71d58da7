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

_ATTEMPT: Final = re.compile(r"(?P<output>.*)/\.attempts/\d+\.json")
_TIMELINE: Final = re.compile(r".*/\.attempts/\d+/timeline\.json")
_OUTPUT: Final = "output"


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

    @property
    def goodput(self) -> float | None:
        """As ``cloud_tpu.goodput`` has it, over all outputs; None if no training measured its steps."""
        return goodput(self.productive_s, self.wall_s) if self.productive_s else None

    def to_json(self) -> dict[str, Any]:
        share = None if self.goodput is None else round(self.goodput, 3)
        return {**asdict(self), "wall_s": round(self.wall_s, 1), "goodput": share}


def read_run_record(prefix: str) -> RunRecord:
    """The record of the run whose outputs are below ``prefix``, on any fsspec store."""
    from fsspec.core import url_to_fs

    fs, root = url_to_fs(prefix)
    fs.invalidate_cache()
    paths = [str(path) for path in fs.find(root)]
    timelines = [path for path in paths if _TIMELINE.fullmatch(path)]
    outputs = {_output_of(path) for path in timelines}
    events = [{**event, _OUTPUT: _output_of(path)} for path in timelines for event in json.loads(fs.cat_file(path))]
    attempts = [path for path in paths if (found := _ATTEMPT.fullmatch(path)) and found["output"] in outputs]
    metrics = [path for path in (posixpath.join(output, METRICS_FILE) for output in outputs) if path in set(paths)]
    productive = sum(CountedSteps(metrics_rows(fs.cat_file(path).decode())).seconds for path in metrics)
    return record_of(events, len(attempts), productive)


def record_of(events: Iterable[Mapping[str, Any]], attempts: int, productive_s: float) -> RunRecord:
    """The same from what the timelines say."""
    ordered = sorted(events, key=lambda event: float(event["at"]))
    ends = [event for event in ordered if event["event"] in ("preempted", "failed")]
    outputs = {event.get(_OUTPUT) for event in ordered}
    return RunRecord(
        attempts=attempts,
        preemptions=sum(event["event"] == "preempted" for event in ends),
        failures=sum(event["event"] == "failed" for event in ends),
        causes=tuple(f"{event['event']}: {event.get('cause') or 'unknown'}" for event in ends),
        wall_s=sum(_wall_s([event for event in ordered if event.get(_OUTPUT) == output]) for output in outputs),
        productive_s=productive_s,
    )


def _wall_s(ordered: Sequence[Mapping[str, Any]]) -> float:
    """Of one output's events: trainings side by side have each their own time."""
    started = next((float(event["at"]) for event in ordered if event["event"] == "started"), None)
    return 0.0 if started is None else float(ordered[-1]["at"]) - started


def _output_of(timeline: str) -> str:
    return posixpath.dirname(posixpath.dirname(posixpath.dirname(timeline)))
