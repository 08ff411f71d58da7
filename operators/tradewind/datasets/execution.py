"""Process a pipeline stage by stage, and continue where an earlier attempt was lost.

The scratch folder has a folder for each stage, named by the stage's key, with the files of its shuffle and a record of
each shard. When all shards are done, the attempt that gets there first writes the stage's manifest; an attempt that
races with it takes that one. A shard counts if the store still has its file with the size and state of the record. A
file of a shuffle has checksums as well; a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any, Final

from tradewind.datasets.backends import Backend
from tradewind.datasets.dataset import Dataset, FilesSource, Shuffle, Write
from tradewind.datasets.files import (
    UNFINISHED,
    basename,
    hidden_parts,
    join,
    parent,
    read_json,
    store_fingerprint,
    write_text,
)
from tradewind.datasets.progress import PROGRESS_FILE, StageProgress, write_progress
from tradewind.datasets.rows import Rows
from tradewind.datasets.shard_task import COLLECT, ShardFailure, ShardResult, StageWork, record_path
from tradewind.datasets.shuffle import DamagedShuffleError, ShuffleFile, read_bucket
from tradewind.datasets.stages import Chain, JoinedChain, PipelineError, Stage, describe_stages, plan_stages
from tradewind.datasets.token_inputs import InputFile
from tradewind.serialization.spec import OUTPUT_VARIABLE
from tradewind.storage import file_system_at
from tradewind.storage.filesystems import remove_file
from tradewind.text import truncated_repr

MAX_ERRORS: Final = 3
"""Tries of a shard that fails by itself."""
MAX_LOSSES: Final = 20
"""Tries of a shard whose worker is lost."""
SCRATCH_FOLDER: Final = ".dataset"
_OUTPUTS: Final = ".outputs"
"""Ending of the file with the paths that a stage writes."""
_STAGE: Final = re.compile(r"[0-9]{2,}-[0-9a-f]{16}")
_used: Final[ContextVar[set[str] | None]] = ContextVar("tradewind_used", default=None)
"""Collects the stages and the outputs of all pipelines."""
_MAX_PATTERNS: Final = 1_000
_MAX_DAMAGES: Final = 3
_MAX_TOLD: Final = 5
_POLL_S: Final = 1.0


class Results(list[Any]):
    """Rows of a pipeline, or the paths of its files.

    Attributes:
        counters: What the user's functions counted.
        rejected: Rows that failed and were left out.
    """

    counters: Mapping[str, int]
    rejected: int

    @property
    def results(self) -> list[Any]:
        """The same list, under the name that Zephyr gives it."""
        return self


class _DamagedStageError(Exception):
    """A file of a stage's shuffle is damaged."""

    def __init__(self, path: str) -> None:
        self.path = path


def execute(dataset: Dataset[Any], backend: Backend) -> Results:
    """Process ``dataset`` on ``backend``; see ``Backend.execute``."""
    stages = plan_stages(dataset, list_source, _states_of)
    print(describe_stages(stages), flush=True)
    if backend.dry_run:
        return _results([], [])
    with backend.connected(), _scratch(backend) as scratch:
        for _ in range(_MAX_DAMAGES):
            run = _Run(stages, backend, scratch)
            try:
                return run.execute()
            except _DamagedStageError as error:
                print(f"{error.path} is damaged: the shard that wrote it is processed again.", flush=True)
                _forget(scratch, error.path)
        raise PipelineError(f"Files below {scratch} were damaged {_MAX_DAMAGES} times: look at the store.")


def list_source(source: FilesSource) -> list[InputFile]:
    """List the files of a source, sorted by path.

    Raises:
        FileNotFoundError: There are none, and that is not expected.
    """
    files: dict[str, InputFile] = {}
    for pattern in _expanded(source.pattern):
        fs, root = file_system_at(pattern)
        fs.invalidate_cache()
        for name, entry in fs.glob(root, detail=True).items():
            if hidden_parts(name) != hidden_parts(root):
                continue
            if entry["type"] not in ("file", "directory"):
                raise PipelineError(f"from_files: {name} is no regular file: a link without a target, or a pipe.")
            if entry["type"] == "file":
                path = str(fs.unstrip_protocol(name)) if "://" in pattern else name
                files[path] = InputFile(path, int(entry["size"]), store_fingerprint(entry))
    if not files and not source.empty_glob_ok:
        fs, root = file_system_at(source.pattern)
        hint = (
            f"It is a folder: give a glob, such as {source.pattern}/*.jsonl.gz"
            if fs.isdir(root)
            else ("If that may be, give empty_glob_ok=True")
        )
        raise FileNotFoundError(f"No file matches {source.pattern}. {hint}.")
    return [files[path] for path in sorted(files)]


def _states_of(paths: Sequence[str]) -> list[InputFile]:
    listings = {folder: _listing(folder) for folder in {parent(path) for path in paths}}
    return [InputFile(path, *listings[parent(path)].get(basename(path), (0, "absent"))) for path in paths]


def _expanded(pattern: str) -> Iterable[str]:
    if "{" not in pattern:
        return [pattern]
    from braceexpand import braceexpand

    try:
        patterns = list(itertools.islice(braceexpand(pattern), _MAX_PATTERNS + 1))
    except ValueError as error:
        raise PipelineError(f"from_files({truncated_repr(pattern)}): {error}.") from error
    if len(patterns) > _MAX_PATTERNS:
        raise PipelineError(
            f"from_files({truncated_repr(pattern)}): its braces make more than {_MAX_PATTERNS:,} globs."
        )
    return patterns


@contextmanager
def _scratch(backend: Backend) -> Iterator[str]:
    output = os.environ.get(OUTPUT_VARIABLE)
    if backend.scratch is not None or output:
        yield backend.scratch if backend.scratch is not None else join(str(output), SCRATCH_FOLDER)
        return
    if backend.spans_nodes():
        raise PipelineError(
            "The tasks of this cluster run on several nodes and need a folder that all of them reach: give "
            "flow_backend(scratch='gs://...'), or tradewind data run --scratch, or process the pipeline in a step."
        )
    folder = tempfile.mkdtemp(prefix="tradewind-dataset-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One pass over the stages.

    Args:
        stages: In the order of execution.
        backend: Where shards are processed.
        scratch: Folder of manifests and of files between stages.
    """

    def __init__(self, stages: Sequence[Stage], backend: Backend, scratch: str) -> None:
        self._stages = stages
        self._backend = backend
        self._scratch = scratch
        self._known: dict[int, dict[int, ShardResult]] = {}
        self._done: dict[int, dict[int, ShardResult]] = {}
        self._shown: dict[int, dict[str, Any]] = {}

    def execute(self) -> Results:
        try:
            needed = self._needed()
            if not needed:
                print(f"Nothing to do: all {self._stages[-1].shards:,} shards were there already.", flush=True)
            for stage in needed:
                self._run_stage(stage)
        except PipelineError as error:
            self._show(str(error))
            raise
        last = self._stages[-1]
        results = _results(self._output(last), [self._shards(stage.number) for stage in self._stages])
        if results.rejected and self._backend.on_error == "quarantine":
            print(f"{results.rejected:,} rows failed; they are in {self._quarantine}.", flush=True)
        self._show(None)
        self._clean()
        if (used := _used.get()) is not None:
            used.update(self._name(stage) for stage in self._stages)
            used.update(path for stage in self._stages for path in stage.outputs)
        return results

    def _shards(self, number: int) -> Mapping[int, ShardResult]:
        """Return the shards of a stage, also if an earlier run has removed its files."""
        return self._done.get(number) or self._known.get(number, {})

    def _needed(self) -> list[Stage]:
        """Return the stages with shards that are not done: those that write files, and those that these read."""
        for stage in self._stages:
            self._known[stage.number] = self._recorded(stage)
        last = len(self._stages) - 1
        wanted = {stage.number for stage in self._stages if stage.outputs or stage.number == last}
        needed = []
        for stage in reversed(self._stages):
            if stage.number not in wanted:
                continue
            self._done[stage.number] = self._whole_shards(stage)
            if len(self._done[stage.number]) < stage.shards:
                needed.append(stage)
                wanted |= set(_inputs(stage.chain))
        return needed[::-1]

    def _recorded(self, stage: Stage) -> dict[int, ShardResult]:
        """Return the shards of which the manifest or a record says that they are done, in a way that counts now."""
        if not self._name(stage):
            return {}
        from tradewind.storage.files import read_contents  # not while a DAG file is parsed: it loads fsspec

        folder = self._folder(stage)
        records = [join(folder, name) for name in _listing(folder) if name.endswith(".json")]
        contents = read_contents([self._manifest(stage), *records])
        results = [result for content in contents.values() for result in _parsed(content.text)]
        return {result.shard: result for result in results if self._counts(result)}

    def _counts(self, result: ShardResult) -> bool:
        """Whether what an earlier run did with rows that fail is what this one would do."""
        return not result.rejected or self._backend.on_error in ("skip", result.on_error)

    def _whole_shards(self, stage: Stage) -> dict[int, ShardResult]:
        """Return the recorded shards whose files are as they were written."""
        results = self._recorded(stage).values()
        listings = {folder: _listing(folder) for folder in {parent(result.path) for result in results}}
        whole = {result.shard: result for result in results if _is_whole(result, listings[parent(result.path)])}
        if isinstance(stage.sink, Write) and stage.sink.skip_existing:
            whole = {**_existing(stage), **whole}
        return whole

    def _name(self, stage: Stage) -> str:
        """Return the stage's key and what the stages before it made: rows made of other ones do not count.

        Empty while these have shards that are not done.
        """
        inputs = sorted(set(_inputs(stage.chain)))
        if any(len(self._shards(number)) < self._stages[number].shards for number in inputs):
            return ""
        made = [
            (result.shard, result.rows, result.crc32, result.rejected)
            for number in inputs
            for _, result in sorted(self._shards(number).items())
        ]
        digest = hashlib.sha256(f"{stage.key} {made}".encode()).hexdigest()[:16]
        return f"{stage.number:02d}-{digest}"

    def _run_stage(self, stage: Stage) -> None:
        done = self._done[stage.number] = self._whole_shards(stage)
        if stage.outputs:
            write_text(f"{self._folder(stage)}{_OUTPUTS}", json.dumps(stage.outputs))
        progress = StageProgress(stage, len(self._stages), done)
        self._shown[stage.number] = progress.as_json()
        missing = [shard for shard in range(stage.shards) if shard not in done]
        failures = self._process(stage, missing, progress)
        self._shown[stage.number] = progress.as_json()
        print(progress.line(), flush=True)
        if failures:
            raise PipelineError(_told(stage, failures))
        self._check_some_left(stage)
        from tradewind.storage.files import create_text

        if not create_text(self._manifest(stage), _as_manifest(done)):
            theirs = self._whole_shards(stage)
            if len(theirs) == stage.shards:  # an attempt that raced with this one was first
                done = self._done[stage.number] = theirs
            write_text(self._manifest(stage), _as_manifest(done))
        self._remove_unfinished(stage)

    def _check_some_left(self, stage: Stage) -> None:
        """Refuse a stage in which rows failed and none is left; remove its files, else another run takes them."""
        done = [result for _, result in sorted(self._done[stage.number].items())]
        failed = [result for result in done if result.rejected]
        if not failed or any(result.rows for result in done):
            return
        for result in failed:
            for path in (result.path, record_path(self._folder(stage), result.shard)):
                remove_file(*file_system_at(path))
        rejected, why = sum(result.rejected for result in failed), failed[0].rejection.rstrip(".")
        kept = f" They are in {self._quarantine}." if self._backend.on_error == "quarantine" else ""
        raise PipelineError(f"{stage.name}: {rejected:,} rows failed, and none is left: {why}.{kept}")

    def _remove_unfinished(self, stage: Stage) -> None:
        """Remove what killed workers left of this stage's files."""
        outputs = set(stage.outputs)
        for folder in {parent(path) for path in outputs}:
            for name in _listing(folder):
                path = join(folder, name)
                if UNFINISHED.search(name) and UNFINISHED.sub("", path) in outputs:
                    remove_file(*file_system_at(path))

    def _process(self, stage: Stage, missing: Sequence[int], progress: StageProgress) -> list[ShardFailure]:
        """Process the shards; return the failures of those that failed too often."""
        waiting, at_work = deque(missing), 0
        tries: Counter[tuple[int, bool]] = Counter()
        failures: list[ShardFailure] = []
        with closing(self._backend.workers(self._work(stage))) as workers:
            while waiting or at_work:
                while waiting and at_work < self._backend.max_parallelism:
                    shard = waiting.popleft()
                    workers.submit(shard)
                    progress.begin(shard)
                    at_work += 1
                for outcome in workers.wait(_POLL_S):
                    at_work -= 1
                    progress.end(outcome)
                    if isinstance(outcome, ShardResult):
                        self._done[stage.number][outcome.shard] = outcome
                        continue
                    if outcome.damaged is not None:
                        raise _DamagedStageError(outcome.damaged)
                    tries[outcome.shard, outcome.is_loss] += 1
                    if self._may_retry(outcome, tries):
                        print(f"{stage.name}: {outcome}. It is processed again.", flush=True)
                        waiting.append(outcome.shard)
                        continue
                    failures.append(outcome)
                    progress.give_up(outcome)
                    if outcome.ends_stage:
                        return failures
                progress.tick(lambda now: self._show(None, stage, now))
        return failures

    @staticmethod
    def _may_retry(outcome: ShardFailure, tries: Counter[tuple[int, bool]]) -> bool:
        limit = MAX_LOSSES if outcome.is_loss else MAX_ERRORS
        return not outcome.is_permanent and tries[outcome.shard, outcome.is_loss] < limit

    def _work(self, stage: Stage) -> StageWork:
        shuffled, written = {}, {}
        for number in _inputs(stage.chain):
            results = [result for _, result in sorted(self._shards(number).items())]
            source = self._stages[number]
            if isinstance(source.sink, Write):
                written[number] = [result.path for result in results]
            else:
                shuffled[number] = [_shuffle_file(source, result) for result in results]
        quarantine = self._quarantine if self._backend.on_error == "quarantine" else None
        folder = self._folder(stage)
        return StageWork(
            stage, folder, shuffled, written, self._backend.on_error, quarantine, self._backend.memory_bytes
        )

    @property
    def _quarantine(self) -> str:
        """A folder beside the files; hidden, so that a later pipeline does not read it with them."""
        outputs = [path for stage in self._stages for path in stage.outputs]
        return join(parent(outputs[-1]) if outputs else self._scratch, ".quarantine")

    def _output(self, last: Stage) -> Iterable[Any]:
        results = [result for _, result in sorted(self._done[last.number].items())]
        if isinstance(last.sink, Write):
            return [result.path for result in results]
        files = [_shuffle_file(last, result) for result in results]
        try:
            return list(read_bucket(files, 0, COLLECT, Rows(), self._backend.memory_bytes))
        except DamagedShuffleError as error:
            raise _DamagedStageError(error.path) from error

    def _manifest(self, stage: Stage) -> str:
        return f"{self._folder(stage)}.json"

    def _folder(self, stage: Stage) -> str:
        return join(self._scratch, self._name(stage))

    def _show(self, problem: str | None, stage: Stage | None = None, progress: StageProgress | None = None) -> None:
        if stage is not None and progress is not None:
            self._shown[stage.number] = progress.as_json()
        shown = [self._shown[number] for number in sorted(self._shown)]
        write_progress(join(self._scratch, PROGRESS_FILE), shown, len(self._stages), problem)

    def _clean(self) -> None:
        """Remove the files between stages; the manifests stay: a second run finds its outputs and what was counted."""
        for stage in self._stages:
            fs, folder = file_system_at(self._folder(stage))
            if fs.exists(folder):
                fs.rm(folder, recursive=True)


def _as_manifest(done: Mapping[int, ShardResult]) -> str:
    return json.dumps([asdict(done[shard]) for shard in sorted(done)])


def _parsed(text: str) -> list[ShardResult]:
    """Return the shards of a manifest or a record; none if it is cut or no such text."""
    try:
        entries = json.loads(text)
        return [ShardResult(**entry) for entry in (entries if isinstance(entries, list) else [entries])]
    except (ValueError, TypeError):
        return []


@contextmanager
def removing_leftovers(output_path: str) -> Iterator[Callable[[], None]]:
    """Yield a function that removes files of earlier attempts, which this one's pipelines made in other stages.

    An attempt leaves files that the next one does not replace if inputs or functions changed meanwhile. Only files
    below ``output_path`` are removed, of which the scratch folder there says that a pipeline was to write them.
    """
    used: set[str] = set()
    token = _used.set(used)
    try:
        yield lambda: _remove_leftovers(output_path.rstrip("/"), used)
    finally:
        _used.reset(token)


def _remove_leftovers(output_path: str, used: set[str]) -> None:
    scratch = join(output_path, SCRATCH_FOLDER)
    fs, root = file_system_at(scratch)
    fs.invalidate_cache()
    for entry in fs.ls(root, detail=True) if fs.exists(root) else []:
        name = basename(entry["name"])
        stage = name.removesuffix(".json").removesuffix(_OUTPUTS)
        if stage in used or not _STAGE.fullmatch(stage):
            continue
        if name.endswith(_OUTPUTS):
            for path in _listed_outputs(join(scratch, name)):
                if path not in used and path.startswith(f"{output_path}/"):
                    remove_file(*file_system_at(path))
        fs.rm(entry["name"], recursive=entry["type"] == "directory")


def _listed_outputs(file: str) -> list[str]:
    try:
        return [str(path) for path in read_json(file)]
    except (ValueError, TypeError):  # it was cut
        return []


def _inputs(chain: Chain) -> Iterator[int]:
    if chain.stage is not None:
        yield chain.stage
    for operation in chain.operations:
        if isinstance(operation, JoinedChain):
            yield from _inputs(operation.right)


def _shuffle_file(stage: Stage, result: ShardResult) -> ShuffleFile:
    buckets = stage.buckets() if isinstance(stage.sink, Shuffle) else 1
    return ShuffleFile(result.path, result.runs, buckets, result.size_bytes)


def _listing(folder: str) -> dict[str, tuple[int, str]]:
    """Return name → size and state of the files directly below a folder."""
    fs, root = file_system_at(folder)
    fs.invalidate_cache()
    try:
        entries = fs.ls(root, detail=True)
    except FileNotFoundError:
        return {}
    return {
        basename(entry["name"]): (int(entry["size"]), store_fingerprint(entry))
        for entry in entries
        if entry["type"] == "file"
    }


def _is_whole(result: ShardResult, listing: Mapping[str, tuple[int, str]]) -> bool:
    return listing.get(basename(result.path)) == (result.size_bytes, result.state)


def _existing(stage: Stage) -> dict[int, ShardResult]:
    listings = {folder: _listing(folder) for folder in {parent(path) for path in stage.outputs}}
    found = [(shard, path, listings[parent(path)].get(basename(path))) for shard, path in enumerate(stage.outputs)]
    return {shard: ShardResult(shard, path, *entry, crc32=0, rows=0) for shard, path, entry in found if entry}


def _forget(scratch: str, path: str) -> None:
    """Remove a damaged file of a shuffle, and the manifest of its stage."""
    folder = parent(path)
    if parent(folder) != scratch.rstrip("/"):
        raise PipelineError(f"{path} is not below {scratch}.")
    for name in (path, f"{folder}.json"):
        remove_file(*file_system_at(name))


def _told(stage: Stage, failures: Sequence[ShardFailure]) -> str:
    head = f"{stage.name}: {len(failures):,} of {stage.shards:,} shards failed"
    lines = [f"  {failure}" for failure in failures[:_MAX_TOLD]]
    more = [f"  and {len(failures) - _MAX_TOLD:,} more"] if len(failures) > _MAX_TOLD else []
    print(failures[0].trace, flush=True)
    return "\n".join([f"{head}:", *lines, *more])


def _results(rows: Iterable[Any], stages: Sequence[Mapping[int, ShardResult]]) -> Results:
    results = Results(rows)
    done = [result for shards in stages for result in shards.values()]
    results.counters = dict(sum((Counter(result.counters) for result in done), Counter()))
    results.rejected = sum(result.rejected for result in done)
    return results
