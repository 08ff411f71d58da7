"""What a run wrote down about itself: attempts, preemptions, failures, and how much of its time counted.

Read from the files beside the outputs (``.attempts/``, ``metrics.jsonl``), whichever run made them.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

_ATTEMPT: Final = re.compile(r"(?P<output>.*)/\.attempts/\d+\.json")
_TIMELINE: Final = re.compile(r"(?P<output>.*)/\.attempts/\d+/timeline\.json")
_METRICS: Final = "metrics.jsonl"
_STEP_SECONDS: Final = "step_seconds"


@dataclass(frozen=True)
class RunRecord:
    """The outputs of one run that were made on pods, all attempts together."""

    attempts: int = 0
    preemptions: int = 0
    failures: int = 0
    causes: tuple[str, ...] = ()
    """Of preemptions and failures, in order."""
    wall_s: float = 0.0
    """From the first start of the pods' processes to the last event."""
    productive_s: float = 0.0
    """In steps that count, each once."""

    @property
    def goodput(self) -> float | None:
        """The share of the time since the first start that went into steps that count; None if nothing says so."""
        return min(1.0, self.productive_s / self.wall_s) if self.wall_s and self.productive_s else None

    def to_json(self) -> dict[str, Any]:
        goodput = None if self.goodput is None else round(self.goodput, 3)
        return {**asdict(self), "wall_s": round(self.wall_s, 1), "goodput": goodput}


def read_run_record(prefix: str) -> RunRecord:
    """The record of the run whose outputs are below ``prefix``, on any fsspec store."""
    from fsspec.core import url_to_fs

    fs, root = url_to_fs(prefix)
    fs.invalidate_cache()
    paths = [str(path) for path in fs.find(root)]
    timelines = [path for path in paths if _TIMELINE.fullmatch(path)]
    outputs = {found["output"] for path in timelines if (found := _TIMELINE.fullmatch(path))}
    events = [event for path in timelines for event in json.loads(fs.cat_file(path))]
    attempts = [path for path in paths if (found := _ATTEMPT.fullmatch(path)) and found["output"] in outputs]
    metrics = [path for path in (posixpath.join(output, _METRICS) for output in outputs) if path in set(paths)]
    productive = sum(_productive(fs.cat_file(path).decode()) for path in metrics)
    return record_of(events, len(attempts), productive)


def record_of(events: Iterable[Mapping[str, Any]], attempts: int, productive_s: float) -> RunRecord:
    """The same from what the timelines say."""
    ordered = sorted(events, key=lambda event: float(event["at"]))
    ends = [event for event in ordered if event["event"] in ("preempted", "failed")]
    started = next((float(event["at"]) for event in ordered if event["event"] == "started"), None)
    return RunRecord(
        attempts=attempts,
        preemptions=sum(event["event"] == "preempted" for event in ends),
        failures=sum(event["event"] == "failed" for event in ends),
        causes=tuple(f"{event['event']}: {event.get('cause') or 'unknown'}" for event in ends),
        wall_s=0.0 if started is None else float(ordered[-1]["at"]) - started,
        productive_s=productive_s,
    )


def _productive(metrics: str) -> float:
    """The seconds of the steps; of two lines about one step the later one counts."""
    seconds: dict[int, float] = {}
    for line in metrics.splitlines():
        try:
            row = json.loads(line)
            if _STEP_SECONDS in row:
                seconds[int(row["step"])] = float(row[_STEP_SECONDS])
        except (ValueError, KeyError, TypeError):
            continue  # cut off by a kill
    return sum(seconds.values())
