"""Lists of outputs for users: state, producer, version and pin of each output below a prefix.

The state of each output derives from its lease, as for a step that wants to use it. Size and commit need two more files
of an output, so only those of the outputs that are shown are read. No file of a result is read or listed.

Texts of records are cut to one line, since anyone who can write the store may have written them.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tradewind.records.attempts import attempt_path, parse_attempt
from tradewind.records.discovery import FoundOutputs, ScanLimits, scan_outputs
from tradewind.records.experiment_files import ExperimentFile, ExperimentFiles, read_experiment_files
from tradewind.records.info_files import EXPERIMENTS_FOLDER
from tradewind.records.manifests import OLDER_MANIFEST_FILE, RESULT_FILE, Manifest, manifest_path
from tradewind.records.parsing import RecordFormatError, is_number, parse
from tradewind.records.pins import pinned_outputs
from tradewind.records.producers import TaskOfRun, task_of
from tradewind.records.record import Record, RecordState, read_records
from tradewind.storage.bounded_read import Content, value_count
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_contents
from tradewind.text import format_producer, pluralize, single_line

MAX_OUTPUTS: Final = 10_000
_MAX_FOLDERS: Final = 20_000
_MAX_SECONDS: Final = 60.0
"""Bound for the search of outputs, and likewise for reading their records."""
_RECORDS_AT_ONCE: Final = 250
"""Outputs whose leases are in memory together; each lease may have a megabyte."""
_DETAILS_AT_ONCE: Final = 8
_SIZES_AT_ONCE: Final = 32
_MAX_DETAIL_BYTES: Final = 2 << 20
"""Bound for a manifest, of about 20,000 files, and for the file of an attempt."""
_MAX_RESULT_VALUES: Final = 5_000
_RESULT_NUMBERS: Final = 3
_MAX_WHOLE: Final = 1e12
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_VERSIONED: Final = re.compile(r"(.+)-([0-9a-f]{6})|(.+)_([0-9a-f]{8})")
"""Ends of output paths: those of steps, and those of Marin's ``StepSpec``."""


@dataclass(frozen=True)
class OutputStatus:
    """One line of ``tradewind status``.

    Attributes:
        attempt: The newest attempt; 0 if Tradewind made none.
        since: When the lease was last written, by the clock of its writer.
        producer: The run or script of that attempt.
        dag, run, task, map_index: The task of that attempt; empty and -1 outside Airflow.
        script: The name of the script of that attempt, without folder and ``.py``; empty in Airflow.
        version: Hash of the version, by the lease; empty if it does not say.
    """

    output_path: str
    state: RecordState
    attempt: int
    producer: str
    job: str
    since: float | None
    dag: str = ""
    run: str = ""
    task: str = ""
    map_index: int = -1
    script: str = ""
    version: str = ""

    @staticmethod
    def of(path: str, record: Record) -> OutputStatus:
        """Read the status from the record of an output."""
        lease = record.lease
        if lease is None or lease.flaw is not None:
            return OutputStatus(path, record.state, 0, "", "", None)
        made_by, script = task_of(lease.by) or TaskOfRun(), lease.by.get("script")
        return OutputStatus(
            output_path=path,
            state=record.state,
            attempt=lease.attempt,
            producer=single_line(format_producer(lease.by)),
            job=single_line(lease.job),
            since=lease.timestamp,
            script=posixpath.basename(single_line(script)).removesuffix(".py") if isinstance(script, str) else "",
            version=lease.version[:6] if _MD5.fullmatch(lease.version) else "",
            **vars(made_by),
        )


def statuses(paths: Sequence[str], records: Mapping[str, Record]) -> list[OutputStatus]:
    """Return the status of each path, running attempts first."""
    found = [OutputStatus.of(path, records[path]) for path in dict.fromkeys(paths)]
    return sorted(found, key=lambda output: output.state is not RecordState.AT_WORK)


@dataclass(frozen=True)
class ListedOutput:
    """An output below a prefix.

    Attributes:
        step: Name of the step, by the output path.
        version: Hash of the version; empty if neither the path nor the lease names it.
        experiment: The DAG or script of the newest attempt, else the newest experiment's file that names the output;
            empty if nothing does.
        is_pinned: Whether ``tradewind gc`` leaves it.
    """

    status: OutputStatus
    step: str
    version: str
    experiment: str
    is_pinned: bool

    @property
    def path(self) -> str:
        """The output path."""
        return self.status.output_path


@dataclass(frozen=True)
class OutputDetails:
    """What an output's manifest and attempt say.

    Attributes:
        size_bytes, files: Of its result; None without a manifest, or with one of more than ``_MAX_DETAIL_BYTES``.
        commit: The Git commit of its code; None if it is not recorded.
        result: The first numbers that the step's function returned, in words; empty without one.
        problem: Why size or commit are unknown, if a file of the output cannot be read.
    """

    size_bytes: int | None = None
    files: int | None = None
    commit: str | None = None
    result: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class ListedExperiment:
    """A file of an experiment, in which an executor says what belongs together; see ``ExperimentFile``.

    Attributes:
        steps: Number of its steps.
        counts: States of those of its outputs that are in the list.
        missing: Number of its outputs below the prefix that are not in the list: without a record, or beyond its end.
        elsewhere: Number of its outputs that are not below the prefix.
    """

    path: str
    name: str
    created: str
    user: str
    commit: str | None
    caller: str
    problem: str | None
    steps: int
    counts: StateCounts
    missing: int
    elsewhere: int


@dataclass(frozen=True)
class OutputList:
    """All outputs below a prefix.

    Attributes:
        outputs: By experiment, the one that changed last first; in it by step, the newest version first.
        files: The files of experiments of the prefix itself, and those of folders above that name an output below it,
            the newest first.
        files_left_out: Number of the files above that name none.
        named_by: Path of each such file → the outputs in the list that it names.
        cuts: Sentences that say what the list lacks.
        took_s: Seconds that the reads took.
    """

    prefix: str
    outputs: tuple[ListedOutput, ...]
    files: tuple[ListedExperiment, ...]
    files_left_out: int
    named_by: Mapping[str, frozenset[str]]
    cuts: tuple[str, ...]
    took_s: float


def list_outputs(prefix: str, above: Sequence[str] = (), max_outputs: int = MAX_OUTPUTS) -> OutputList:
    """List the outputs below ``prefix``, with a bound for outputs, folders and seconds.

    Args:
        above: Folders above the prefix whose pins and experiments count too.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    began = time.monotonic()
    found = scan_outputs(prefix, ScanLimits(max_outputs, _MAX_FOLDERS, _MAX_SECONDS))
    pinned = pinned_outputs([prefix, *found.prefixes, *above], found.outputs)
    files = read_experiment_files([prefix, *above])
    read = _read_statuses(found.outputs)
    listed = {status.output_path: status for status in read}
    named = {path: file.name for file in reversed(files.files) for path in file.outputs if path in listed}
    outputs = []
    for status in read:
        path = status.output_path
        step, version = _step_and_version(prefix, path)
        experiment = status.dag or status.script or named.get(path, "")
        outputs.append(ListedOutput(status, step, version or status.version, experiment, path in pinned))
    changed: dict[str, float] = {}
    for each in outputs:
        changed[each.experiment] = max(changed.get(each.experiment, 0.0), each.status.since or 0.0)
    outputs.sort(
        key=lambda each: (
            each.experiment == "",
            -changed[each.experiment],
            each.experiment,
            each.step,
            -(each.status.since or 0.0),
        )
    )
    shown = [each for each in files.files if _concerns(each, prefix)]
    return OutputList(
        prefix,
        tuple(outputs),
        tuple(_listed_experiment(each, prefix, listed) for each in shown),
        len(files.files) - len(shown),
        {file.path: frozenset(listed[path].output_path for path in file.outputs if path in listed) for file in shown},
        _cuts(prefix, found, len(read), files),
        time.monotonic() - began,
    )


def _concerns(file: ExperimentFile, prefix: str) -> bool:
    """Whether a file is one of the prefix itself, or names an output below it."""
    start = posixpath.join(prefix, "")
    own = f"{start}{EXPERIMENTS_FOLDER}"
    return posixpath.dirname(file.path) == own or any(path.startswith(start) for path in file.outputs)


def _listed_experiment(file: ExperimentFile, prefix: str, listed: Mapping[str, OutputStatus]) -> ListedExperiment:
    start = posixpath.join(prefix, "")
    own = [listed[path].state for path in file.outputs if path in listed]
    elsewhere = sum(not path.startswith(start) for path in file.outputs)
    return ListedExperiment(
        path=file.path,
        name=file.name,
        created=file.created,
        user=file.user,
        commit=file.commit,
        caller=file.caller,
        problem=file.problem,
        steps=len(file.outputs),
        counts=count_states(file.name, own),
        missing=len(file.outputs) - len(own) - elsewhere,
        elsewhere=elsewhere,
    )


def read_details(outputs: Sequence[OutputStatus]) -> list[OutputDetails]:
    """Read size and commit of each output, a few at once.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    details: list[OutputDetails] = []
    for start in range(0, len(outputs), _DETAILS_AT_ONCE):
        some = outputs[start : start + _DETAILS_AT_ONCE]
        files = [file for each in some if each.attempt for file in _files_of(each)]
        contents = read_contents(files, _MAX_DETAIL_BYTES)
        details += [_details(each, contents) for each in some]
    return details


@dataclass(frozen=True)
class OutputSizes:
    """Sizes of finished outputs.

    Attributes:
        size_bytes: Output path → size of its result.
        cuts: Sentences that say which sizes are not known.
    """

    size_bytes: Mapping[str, int]
    cuts: tuple[str, ...]


def read_sizes(outputs: Sequence[ListedOutput]) -> OutputSizes:
    """Read the sizes of finished outputs, as many as are read in ``_MAX_SECONDS``.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    began = time.monotonic()
    finished = [each.status for each in outputs if each.status.state is RecordState.FINISHED and each.status.attempt]
    sizes: dict[str, int] = {}
    read, unreadable = 0, 0
    while read < len(finished) and time.monotonic() - began <= _MAX_SECONDS:
        some = finished[read : read + _SIZES_AT_ONCE]
        contents = read_contents([_files_of(each)[0] for each in some], _MAX_DETAIL_BYTES)
        older = [_files_of(each)[1] for each in some if _files_of(each)[0] not in contents]
        contents |= read_contents(older, _MAX_DETAIL_BYTES) if older else {}
        found = {each.output_path: _details(each, contents) for each in some}
        sizes |= {path: each.size_bytes for path, each in found.items() if each.size_bytes is not None}
        unreadable += sum(each.problem is not None for each in found.values())
        read += len(some)
    cuts = []
    if read < len(finished):
        cuts.append(
            f"The sizes of {read:,} of {len(finished):,} finished outputs are known, since the store gave no more "
            f"manifests in {_MAX_SECONDS:.0f} s: narrow the prefix to sort all by size."
        )
    if unreadable:
        cuts.append(
            f"Of {pluralize(unreadable, 'output')} the size is not known, since the manifest is larger than "
            f"{_MAX_DETAIL_BYTES >> 20} MB or damaged: sorted by size, such outputs come last."
        )
    return OutputSizes(sizes, tuple(cuts))


Order = Literal["step", "-step", "state", "-state", "since", "-since", "size", "-size"]
"""What outputs are sorted by; with a minus the last or largest come first."""


def in_order(outputs: Iterable[ListedOutput], order: Order, size_bytes: Mapping[str, int]) -> list[ListedOutput]:
    """Return the outputs in another order, those without a value last; equal ones stay in theirs."""
    values: dict[str, Callable[[ListedOutput], Any]] = {
        "step": lambda each: each.step.lower(),
        "state": lambda each: each.status.state.value,
        "since": lambda each: each.status.since,
        "size": lambda each: size_bytes.get(each.path),
    }
    pairs = [(values[order.removeprefix("-")](each), each) for each in outputs]
    known = [pair for pair in pairs if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=order.startswith("-"))
    return [each for _, each in known] + [each for value, each in pairs if value is None]


def _read_statuses(paths: Sequence[str]) -> list[OutputStatus]:
    """Return the statuses that can be read in time."""
    began = time.monotonic()
    read: list[OutputStatus] = []
    for start in range(0, len(paths), _RECORDS_AT_ONCE):
        if time.monotonic() - began > _MAX_SECONDS:
            break
        records = read_records(paths[start : start + _RECORDS_AT_ONCE])
        read += [OutputStatus.of(path, record) for path, record in records.items()]
    return read


def _step_and_version(prefix: str, path: str) -> tuple[str, str]:
    below = path.removeprefix(posixpath.join(prefix, ""))
    match = _VERSIONED.fullmatch(below)
    return (match[1] or match[3], match[2] or match[4]) if match else (below, "")


def _cuts(prefix: str, found: FoundOutputs, read: int, files: ExperimentFiles) -> tuple[str, ...]:
    cuts = []
    if found.cut:
        cuts.append(f"There may be more outputs below {prefix}, because {found.cut}: narrow the prefix to see them.")
    if read < len(found.outputs):
        cuts.append(
            f"{read:,} of {len(found.outputs):,} outputs are shown, since the store gave no more records in "
            f"{_MAX_SECONDS:.0f} s: narrow the prefix to see the others."
        )
    return (*cuts, *((files.cut,) if files.cut else ()))


def _files_of(output: OutputStatus) -> tuple[str, str, str, str]:
    """Return the paths of the manifest, of the manifest of older outputs, of the attempt, and of the result."""
    path, attempt = output.output_path, output.attempt
    older, result = posixpath.join(path, OLDER_MANIFEST_FILE), posixpath.join(path, RESULT_FILE)
    return manifest_path(path, attempt), older, attempt_path(path, attempt), result


def _details(output: OutputStatus, contents: Mapping[str, Content]) -> OutputDetails:
    newer, older, attempt_file, result_file = _files_of(output)
    result = _result(contents.get(result_file)) if output.state is RecordState.FINISHED else ""
    file = newer if newer in contents else older
    manifest, commit, problem = None, None, None
    try:
        if file in contents and output.state is RecordState.FINISHED:
            manifest = _manifest(file, contents[file])
        if attempt_file in contents:
            commit = parse_attempt(attempt_file, contents[attempt_file]).code_commit
    except BadRecordError as error:
        problem = single_line(error)
    if manifest is None:
        return OutputDetails(commit=_short(commit), result=result, problem=problem)
    return OutputDetails(manifest.size, len(manifest.files), _short(commit), result, problem)


def _result(content: Content | None) -> str:
    if content is None or content.flaw is not None or value_count(content.text) > _MAX_RESULT_VALUES:
        return ""
    try:
        value = parse(content.text)
    except RecordFormatError:  # a function may return anything
        return ""
    numbers = itertools.islice(_numbers(value), _RESULT_NUMBERS)
    return ", ".join(f"{single_line(name, 40)} {_short_number(number)}".strip() for name, number in numbers)


def _short_number(number: float) -> str:
    return f"{number:,.0f}" if number.is_integer() and abs(number) < _MAX_WHOLE else f"{number:.4g}"


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a result with their names, such as ``eval/loss``; lists have none that matter."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}/{key}" if name else key)
    elif isinstance(value, float) or is_number(value):
        yield name, float(value)


def _manifest(file: str, content: Content) -> Manifest:
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        return Manifest.from_json(content.text)
    except RecordFormatError as flaw:
        raise BadRecordError(file, str(flaw), "Its size is not shown.") from None


def _short(commit: str | None) -> str | None:
    return None if commit is None else single_line(commit, 80)


@dataclass(frozen=True)
class OutputFilter:
    """Which outputs of a list to show; each field that is empty or None admits all.

    Attributes:
        text: A part of the output path, in upper or lower case.
        states: Some of these.
        producer: A part of the producer, likewise.
        experiment: The experiment; empty for outputs of which none is known.
        file: Path of an experiment's file that names the output.
    """

    text: str = ""
    states: frozenset[RecordState] = frozenset()
    producer: str = ""
    experiment: str | None = None
    is_pinned: bool | None = None
    file: str = ""

    def select(self, listed: OutputList) -> list[ListedOutput]:
        """Return the outputs of a list that it admits, in their order."""
        named = listed.named_by.get(self.file, frozenset())
        return [output for output in listed.outputs if self._admits(output) and (not self.file or output.path in named)]

    def _admits(self, output: ListedOutput) -> bool:
        status = output.status
        return (
            self.text.lower() in output.path.lower()
            and self.producer.lower() in status.producer.lower()
            and (not self.states or status.state in self.states)
            and self.experiment in (None, output.experiment)
            and self.is_pinned in (None, output.is_pinned)
        )


@dataclass(frozen=True)
class StateCounts:
    """How many outputs are in each state.

    Attributes:
        name: What has them: an experiment or an experiment's file.
        states: State → number, without those that no output is in.
    """

    name: str
    states: Mapping[RecordState, int]


def count_states(name: str, states: Iterable[RecordState]) -> StateCounts:
    """Count the states of the outputs of ``name``, in the order of ``RecordState``."""
    counts = Counter(states)
    return StateCounts(name, {state: counts[state] for state in RecordState if counts[state]})


def experiments_of(outputs: Iterable[ListedOutput]) -> list[StateCounts]:
    """Return all experiments of the outputs, in order; last, with an empty name, outputs of which none is known."""
    by_name: dict[str, list[RecordState]] = {}
    for output in outputs:
        by_name.setdefault(output.experiment, []).append(output.status.state)
    return [count_states(name, by_name[name]) for name in sorted(by_name, key=lambda name: (name == "", name))]
