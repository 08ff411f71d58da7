"""Read what a run has made: compare its outputs with a baseline run's, file by file, and sum up its attempts.

Two differences are ignored: the time of a metric, and the prefix of an output. Checkpoints and logs are skipped:
checkpoint files have random names, and their content shows in the export and in every later loss. An unreadable file,
such as a truncated one, counts as a difference and does not end the drill.

The record of a run (attempts, preemptions, failures, goodput) comes from the files beside its outputs, ``.attempts/``
and ``metrics.jsonl``. An unreadable file is named, and the others count.
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
"""Lists the tokenized input files by path and modification time."""
_OF_THE_CLOCK: Final = frozenset({"time", "step_seconds"})
_LOSS: Final = "train/loss"
_ATTEMPT: Final = re.compile(r"(?P<output>.*)/\.attempts/\d+\.json")
_TIMELINE: Final = re.compile(r"(?P<output>.*)/\.attempts/(?P<attempt>\d+)/timeline\.json")


@dataclass(frozen=True)
class OutputVerdict:
    """Comparison of one step's output in both runs."""

    step: str
    """Name and version, which is the output's path below the prefix."""
    files: int
    different: tuple[str, ...]
    """Paths that differ, with the number of differing rows."""
    final_loss: float | None = None
    """Last ``train/loss`` of the run under faults, if it is a number."""
    baseline_loss: float | None = None

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
            "undisturbed_final_loss": self.baseline_loss,
        }


def compare_outputs(undisturbed: str, disturbed: str) -> tuple[OutputVerdict, ...]:
    """Return a verdict for every output below ``undisturbed``, compared with the same below ``disturbed``."""
    first, second = _Tree(undisturbed), _Tree(disturbed)
    return tuple(_verdict(name, first, second) for name in first.outputs())


class _Tree:
    """The files below one prefix, on any fsspec store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.rstrip("/")
        self._fs, self._root = file_system_at(self.prefix)
        self._fs.invalidate_cache()

    def outputs(self) -> list[str]:
        """Return the outputs below the prefix, as relative paths."""
        found = [str(path) for path in self._fs.find(self._root) if posixpath.basename(path) == LEASE_FILE]
        return sorted(posixpath.relpath(posixpath.dirname(path), self._root) for path in found)

    def files(self, output: str) -> dict[str, str | None]:
        """Return path → checksum from the committed attempt's manifest; empty without one.

        Raises:
            BadRecordError: The lease or the manifest is invalid.
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
        """Return the text of a file; empty if it does not exist.

        Raises:
            BadRecordError: It is no text, or too large.
        """
        return read_text(posixpath.join(self.prefix, path)) or ""

    def rows(self, path: str) -> dict[int, dict[str, Any]]:
        """Return step → metrics from a file; the last line of a step counts.

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
        yield f"{path} is only in the {'baseline run' if path in files else 'run with faults'}"
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
    """Return the last loss of a metrics file; None without one, or if unreadable (a reported difference)."""
    try:
        rows = tree.rows(metrics)
    except BadRecordError:
        return None
    losses = [rows[step][_LOSS] for step in sorted(rows) if _LOSS in rows[step]]
    return losses[-1] if losses and is_number(losses[-1]) else None


@dataclass(frozen=True)
class PodEvent(TimelineEvent):
    """One timeline event of a run's pod."""

    attempt: int = 1
    output: str = ""
    """The pod's output."""

    @property
    def is_end(self) -> bool:
        """Whether the pod's processes ended before they were done."""
        return self.name in ("preempted", "failed")


@dataclass(frozen=True)
class RunRecord:
    """The outputs of one run that pods made, all attempts together."""

    attempts: int = 0
    preemptions: int = 0
    failures: int = 0
    causes: tuple[str, ...] = ()
    """Causes of preemptions and failures, in order."""
    wall_s: float = 0.0
    """Time from the first process start to the last event, summed over outputs."""
    productive_s: float = 0.0
    """Time in steps that count, each step once."""
    events: tuple[PodEvent, ...] = ()
    """Events of all pods, in order."""
    unread: tuple[str, ...] = ()
    """Why a timeline or metrics file is unreadable, a sentence or two for each."""

    @property
    def ends(self) -> tuple[PodEvent, ...]:
        """The preemptions and failures."""
        return tuple(event for event in self.events if event.is_end)

    @property
    def goodput(self) -> float | None:
        """Goodput as in ``cloud_tpu.goodput``, over all outputs; None if no training measured its steps."""
        return goodput(self.productive_s, self.wall_s) if self.productive_s else None

    def to_json(self) -> dict[str, Any]:
        share = None if self.goodput is None else round(self.goodput, 3)
        fields = {name: value for name, value in asdict(self).items() if name != "events"}
        return {**fields, "wall_s": round(self.wall_s, 1), "goodput": share}


def read_run_record(prefix: str) -> RunRecord:
    """Read the record of the run whose outputs are below ``prefix``, on any fsspec store."""
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
    """Build the record from the timelines' events."""
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
    """Return the wall time of one output's events: parallel trainings count separately."""
    started = next((event.at for event in ordered if event.name == "started"), None)
    return 0.0 if started is None else ordered[-1].at - started
