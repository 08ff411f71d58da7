"""Whether a disturbed run made what an undisturbed one made, file by file, by the manifests of both.

Two things may differ and say nothing: when a metric was measured, and under which prefix an output lies. Left out are
checkpoints, whose files have random names (what is in them shows in the export and in every later loss), and logs.
What cannot be read, such as half a file, is a difference and not the end of the drill.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.cloud_tpu.goodput import METRICS_FILE, CountedSteps, goodput, metrics_rows
from tradewind.records.lease import LEASE_FILE
from tradewind.records.manifests import read_manifest
from tradewind.records.parsing import is_number
from tradewind.records.record import read_leases
from tradewind.runtime.pods.timeline import TimelineEvent, read_timeline
from tradewind.storage import file_system_at
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_text

_LEFT_OUT: Final = ("checkpoints/", "logs/", "tensorboard/", "wandb/")
_OF_INPUTS: Final = ".tokenization"
"""Says of which files, by path and time of writing, tokens were made."""
_OF_THE_CLOCK: Final = frozenset({"time", "step_seconds"})
_LOSS: Final = "train/loss"


@dataclass(frozen=True)
class OutputVerdict:
    """One step's output in both runs."""

    step: str
    """Name and version, which is where the output lies below the prefix."""
    files: int
    different: tuple[str, ...]
    """What is not the same in both: paths, with how many of their rows."""
    final_loss: float | None = None
    """The last ``train/loss`` of the disturbed run, if it is a number."""
    undisturbed_loss: float | None = None

    @property
    def is_equal(self) -> bool:
        return not self.different

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "equal": self.is_equal,
            "files": self.files,
            "different": list(self.different),
            "final_loss": self.final_loss,
            "undisturbed_final_loss": self.undisturbed_loss,
        }


def compare_outputs(undisturbed: str, disturbed: str) -> tuple[OutputVerdict, ...]:
    """A verdict for every output below the prefix ``undisturbed``, compared with the same below ``disturbed``."""
    first, second = _Tree(undisturbed), _Tree(disturbed)
    return tuple(_verdict(name, first, second) for name in first.outputs())


class _Tree:
    """What lies below one prefix, on any fsspec store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.rstrip("/")
        self._fs, self._root = file_system_at(self.prefix)
        self._fs.invalidate_cache()

    def outputs(self) -> list[str]:
        """The outputs below the prefix, relative to it."""
        found = [str(path) for path in self._fs.find(self._root) if posixpath.basename(path) == LEASE_FILE]
        return sorted(posixpath.relpath(posixpath.dirname(path), self._root) for path in found)

    def files(self, output: str) -> dict[str, str | None]:
        """Path → checksum, as the manifest of the committed attempt has them; nothing when there is none.

        Raises:
            BadRecordError: What should be the lease or the manifest is none.
        """
        path = posixpath.join(self.prefix, output)
        lease = read_leases([path]).get(path)
        if lease is None:
            return {}
        if lease.flaw is not None:
            raise BadRecordError(posixpath.join(path, lease.flawed_file), lease.flaw)
        manifest = read_manifest(path, lease.attempt)
        return {} if manifest is None else {file.path: file.checksum for file in manifest.files}

    def read(self, path: str) -> str:
        """The text of a file; empty if there is none.

        Raises:
            BadRecordError: It is no text, or too large.
        """
        return read_text(posixpath.join(self.prefix, path)) or ""

    def rows(self, path: str) -> dict[int, dict[str, Any]]:
        """Step → what was measured there, of a file of metrics; a later line about a step counts.

        Raises:
            BadRecordError: It is no text, or too large.
        """
        steps: dict[int, dict[str, Any]] = {}
        for row in metrics_rows(self.read(path)):
            kept = {name: value for name, value in row.items() if name not in _OF_THE_CLOCK}
            steps.setdefault(row["step"], {}).update(kept)
        return steps


def _verdict(output: str, first: _Tree, second: _Tree) -> OutputVerdict:
    try:
        files, others = first.files(output), second.files(output)
    except BadRecordError as error:
        return OutputVerdict(output, 0, (str(error),))
    if not others:
        return OutputVerdict(output, 0, ("the whole output is missing",))
    paths = [path for path in sorted(files.keys() | others.keys()) if not _is_left_out(path)]
    different = [text for path in paths for text in _differences(output, path, files, others, first, second)]
    metrics = posixpath.join(output, METRICS_FILE)
    losses = [_last_loss(tree, metrics) if METRICS_FILE in files else None for tree in (second, first)]
    return OutputVerdict(output, len(paths), tuple(different), *losses)


def _is_left_out(path: str) -> bool:
    return path.startswith(_LEFT_OUT) or posixpath.basename(path) == _OF_INPUTS


def _differences(
    output: str,
    path: str,
    files: Mapping[str, str | None],
    others: Mapping[str, str | None],
    first: _Tree,
    second: _Tree,
) -> Iterator[str]:
    if files.get(path) == others.get(path):
        return
    whole = posixpath.join(output, path)
    if path not in files or path not in others:
        yield f"{path} is only in the {'undisturbed' if path in files else 'disturbed'} run"
        return
    try:
        if posixpath.basename(path) == METRICS_FILE:
            yield from _different_rows(path, first.rows(whole), second.rows(whole))
        elif not path.endswith(".json") or first.read(whole).replace(first.prefix, second.prefix) != second.read(whole):
            yield path
    except BadRecordError as error:
        yield str(error)


def _different_rows(
    path: str, expected: Mapping[int, Mapping[str, Any]], found: Mapping[int, Mapping[str, Any]]
) -> Iterator[str]:
    missing = len(expected.keys() - found.keys())
    wrong = sum(expected.get(step) != row for step, row in found.items())
    if missing or wrong:
        yield f"{path}: of {len(expected)} rows, {missing} are missing and {wrong} differ"


def _last_loss(tree: _Tree, metrics: str) -> float | None:
    """The last loss in a file of metrics; None if it has none, or cannot be read, which is told as a difference."""
    try:
        rows = tree.rows(metrics)
    except BadRecordError:
        return None
    losses = [rows[step][_LOSS] for step in sorted(rows) if _LOSS in rows[step]]
    return losses[-1] if losses and is_number(losses[-1]) else None


# What a run wrote down about itself: attempts, preemptions, failures, and how much of its time counted.
#
# Read from the files beside the outputs (``.attempts/``, ``metrics.jsonl``), whichever run made them. One that cannot
# be read is named, and the others count.

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
