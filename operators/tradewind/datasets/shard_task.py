"""Process one shard of a stage in a worker, and leave its file and a record of it.

A task returns its failure as a value, so that what a user reads is not wrapped in another traceback, and that an error
that cannot be pickled is reported like any other.
"""

from __future__ import annotations

import io
import itertools
import json
import posixpath
import re
import sysconfig
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets.dataset import Join, Read, ShardInfo, Shuffle, Transform, Write
from tradewind.datasets.files import atomic_writer, join, state_of, write_text
from tradewind.datasets.readers import READERS
from tradewind.datasets.rows import (
    PERMANENT,
    OnError,
    RowError,
    Rows,
    SeveralRowsError,
    UnreadableFileError,
    current_rows,
    error_text,
    given_rows,
)
from tradewind.datasets.shuffle import DEFAULT_MEMORY, DamagedShuffleError, ShuffleFile, ShuffleWriter, read_bucket
from tradewind.datasets.stages import Chain, JoinedChain, Stage
from tradewind.datasets.token_inputs import InputFile
from tradewind.datasets.writers import SummedFile, write_rows
from tradewind.text import truncated_repr

COLLECT: Final = Shuffle("collect", 1)
"""How rows come back to the caller: all in one bucket, in their order."""
_PACKAGE: Final = posixpath.dirname(posixpath.dirname(__file__))
_NOT_OWN: Final = (_PACKAGE, "<frozen", sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED: Final = re.compile("[/-]packages/")
_MAX_COLUMNS: Final = 20
_BUFFER_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class StageWork:
    """What all tasks of a stage share.

    Attributes:
        stage: What to do.
        folder: Where files of a shuffle and the records of shards go.
        shuffled: Number of a stage → files of its shuffle.
        written: Number of a stage → paths of the files it wrote.
        on_error: What happens to rows that fail.
        quarantine: Folder for rows that failed.
        memory_bytes: Memory of one worker.
    """

    stage: Stage
    folder: str
    shuffled: Mapping[int, Sequence[ShuffleFile]] = field(default_factory=dict)
    written: Mapping[int, Sequence[str]] = field(default_factory=dict)
    on_error: OnError = "raise"
    quarantine: str | None = None
    memory_bytes: int = DEFAULT_MEMORY


@dataclass(frozen=True)
class ShardResult:
    """A shard that is done; also the record of it, as JSON.

    Attributes:
        shard: Its number.
        path: The file that it wrote.
        size_bytes: Size of that file.
        state: State of that file in the store; a later write changes it.
        crc32: Checksum of its bytes.
        rows: Rows that it wrote.
        runs: Sorted runs in a file of a shuffle.
        rejected: Rows that failed and were left out.
        seconds: How long it took.
        counters: What the user's functions counted.
        on_error: What happened to rows that failed.
        rejection: Why the first row that was left out failed.
    """

    shard: int
    path: str
    size_bytes: int
    state: str
    crc32: int
    rows: int
    runs: int = 0
    rejected: int = 0
    seconds: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    on_error: str = "raise"
    rejection: str = ""


@dataclass(frozen=True)
class ShardFailure:
    """Why a shard is not done.

    Attributes:
        shard: Its number.
        message: The error, in one line.
        place: File and number of the row that was read last; empty if there was none.
        row: That row, cut.
        frame: The user's own line in which it failed.
        trace: The whole traceback.
        is_loss: The worker or its node was lost.
        is_permanent: Another try would fail the same way.
        ends_stage: All other shards would as well.
        damaged: A file of a shuffle that must be made again.
    """

    shard: int
    message: str
    place: str = ""
    row: str = ""
    frame: str = ""
    trace: str = ""
    is_loss: bool = False
    is_permanent: bool = False
    ends_stage: bool = False
    damaged: str | None = None

    def __str__(self) -> str:
        parts = [f"shard {self.shard:,}: {self.message.rstrip('.')}"]
        parts += [f"at {self.frame}"] if self.frame else []
        parts += [f"while it read {self.place}"] if self.place else []
        parts += [f"the row was {self.row}"] if self.row else []
        return ", ".join(parts)


def run_shard(work: StageWork, shard: int) -> ShardResult | ShardFailure:
    """Process one shard, write its file and then its record."""
    rows = Rows(work.on_error, work.folder)
    token = current_rows.set(rows)
    started = time.monotonic()
    try:
        stream = _rows_of(work, work.stage.chain, shard, rows)
        result = _written(work, shard, rows, stream, started)
        _write_quarantine(work, shard, rows)
        write_text(record_path(work.folder, shard), json.dumps(asdict(result)))
        return result
    except (Exception, SystemExit) as error:  # sys.exit() in a user's function ends no worker
        return _failure(shard, rows, _cause(work.stage.chain, shard, rows, error))
    finally:
        current_rows.reset(token)


def _cause(chain: Chain, shard: int, rows: Rows, error: BaseException) -> BaseException:
    """Return the error, or that its file has changed since it was listed: it may have been read half written."""
    if isinstance(error, RowError) and chain.files:
        try:
            for file in chain.files[shard]:
                if file.path == rows.path:
                    _check_unchanged(file)
        except RowError as changed:
            return changed
        except OSError:  # it is gone, which the error says
            pass
    return error


def record_path(folder: str, shard: int) -> str:
    """Return the path of a shard's record."""
    return join(folder, f"{shard:06d}.json")


def _rows_of(work: StageWork, chain: Chain, shard: int, rows: Rows) -> Iterator[Any]:
    stream: Iterator[Any]
    if chain.shuffle is not None and chain.stage is not None:
        stream = read_bucket(work.shuffled[chain.stage], shard, chain.shuffle, rows, work.memory_bytes)
    elif chain.stage is not None:
        stream = rows.numbered([work.written[chain.stage][shard]])
    elif chain.files:
        stream = _unchanged(chain.files[shard], rows)
    else:
        assert chain.items is not None
        stream = rows.numbered([chain.items[shard]])
    info = ShardInfo(shard, chain.shards)
    for operation in chain.operations:
        match operation:
            case Read():
                stream = _read(operation, stream, rows)
            case Transform():
                stream = _transformed(operation, stream, rows, info)
            case JoinedChain(_, right, merge):
                beside = rows.beside()
                partners = rows.following(beside, _rows_of(work, right, shard, beside))
                pairs = merge_join(stream, partners, merge)
                stream = rows.mapped(lambda pair, combine=merge.combiner: combine(*pair), pairs)  # type: ignore[misc]
    return stream


def _unchanged(files: Iterable[InputFile], rows: Rows) -> Iterator[str]:
    """Yield the paths; when all of a file has been read, check that it is still the one that was listed."""
    for number, file in enumerate(files, 1):
        rows.path, rows.number, rows.row = "", number, file.path
        yield file.path
        _check_unchanged(file)


def _check_unchanged(file: InputFile) -> None:
    if (file.size_bytes, file.state) != state_of(file.path):
        raise RowError(f"{file.path} changed while the pipeline ran: stop what writes it, and run again.")


def _read(read: Read, paths: Iterator[Any], rows: Rows) -> Iterator[Any]:
    reader, options = READERS[read.kind], dict(read.options)
    for path in paths:
        for row in reader(rows, path, **options):
            yield row if read.path_column is None else _with_path(row, read.path_column, path)


def _with_path(row: Any, column: str, path: str) -> Any:
    names = row if isinstance(row, dict) else getattr(row, "column_names", None)
    if names is None:
        raise RowError(f"{path} has the row {truncated_repr(row)}: a column of paths needs rows that are objects.")
    if column in names:
        raise RowError(f"{path} has a column {column!r} already: give file_path_column another name.")
    if isinstance(row, dict):
        return {**row, column: path}
    import pyarrow as pa

    return row.append_column(column, pa.array([path] * row.num_rows, pa.string()))


def _transformed(transform: Transform, stream: Iterator[Any], rows: Rows, info: ShardInfo) -> Iterator[Any]:
    match transform.kind:
        case "map":
            return rows.mapped(transform.fn, stream)
        case "flat_map":
            return rows.flattened(transform.fn, stream)
        case "filter":
            return rows.filtered(transform.fn, stream)
        case "map_shard":
            return iter(given_rows(transform.fn(stream, info), transform.name))
        case _:
            return _windows(transform.fn, transform.initial, stream)


def _windows(folder: Callable[[Any, Any], tuple[bool, Any]], initial: Any, stream: Iterable[Any]) -> Iterator[Any]:
    window: list[Any] = []
    state = initial
    for row in stream:
        joins, state = folder(state, row)
        if not joins:
            if window:
                yield window
            window = []
            _, state = folder(initial, row)
        window.append(row)
    if window:
        yield window


def merge_join(left: Iterator[Any], right: Iterator[Any], join: Join) -> Iterator[tuple[Any, Any]]:
    """Yield each pair of rows with one key, or of a left join a row and None; both sides are sorted by it.

    The right rows of one key are held in memory.

    Raises:
        RowError: A side is not sorted.
    """
    groups = itertools.groupby(_sorted(right, join.right_key, "right"), itemgetter(0))
    held = next(groups, None)
    partners: list[Any] | None = None
    for key, row in _sorted(left, join.left_key, "left"):
        while held is not None and _is_less(held[0], key, "of both sides"):
            held, partners = next(groups, None), None
        if held is None or held[0] != key:
            if join.is_left:
                yield row, None
            continue
        if partners is None:
            partners = [partner for _, partner in held[1]]
        yield from ((row, partner) for partner in partners)
    for _ in groups:  # rows without a partner are in order, too
        pass


def _sorted(stream: Iterator[Any], key_of: Callable[[Any], Any], side: str) -> Iterator[tuple[Any, Any]]:
    last: Any = None
    for number, row in enumerate(stream):
        key = key_of(row)
        if number and key != last and not _is_less(last, key, f"of the {side} data set"):
            raise RowError(
                f"sorted_merge_join: the {side} data set is not sorted by its key: {truncated_repr(key)} follows "
                f"{truncated_repr(last)}. Give it a group_by or deduplicate with that key."
            )
        last = key
        yield key, row


def _is_less(first: Any, second: Any, whose: str) -> bool:
    try:
        return bool(first < second)
    except TypeError as error:
        raise RowError(f"sorted_merge_join: keys {whose} cannot be compared: {error_text(error)}.") from error


def _written(work: StageWork, shard: int, rows: Rows, stream: Iterator[Any], started: float) -> ShardResult:
    sink = work.stage.sink
    if isinstance(sink, Write):
        path = work.stage.outputs[shard]
        written = write_rows(sink.kind, path, stream, rows, dict(sink.options))
        size, checksum, count, runs = written.size_bytes, written.crc32, written.rows, 0
    else:
        path = join(work.folder, f"{shard:06d}-{uuid.uuid4().hex[:8]}.rows")
        shuffle = COLLECT if sink is None else sink
        writer = ShuffleWriter(shuffle, shuffle.num_shards or work.stage.shards, shard, rows, work.memory_bytes)
        with atomic_writer(path) as file:
            summed = SummedFile(file)
            with io.BufferedWriter(summed, _BUFFER_BYTES) as buffered:
                count, runs = writer.write(stream, buffered)
        size, checksum = summed.size, summed.crc32
    stored_size, state = state_of(path)
    if stored_size != size:
        raise RuntimeError(f"{path} has {stored_size:,} bytes, and {size:,} were written: another process writes it.")
    seconds = round(time.monotonic() - started, 3)
    return ShardResult(
        shard,
        path,
        size,
        state,
        checksum,
        count,
        runs,
        rows.rejected,
        seconds,
        dict(rows.counters),
        rows.on_error,
        rows.first_rejection,
    )


def _write_quarantine(work: StageWork, shard: int, rows: Rows) -> None:
    if rows.quarantined and work.quarantine is not None:
        name = f"stage-{work.stage.number:02d}-{work.stage.key[:8]}-shard-{shard:05d}.jsonl"
        write_text(join(work.quarantine, name), "\n".join(rows.quarantined) + "\n")


def _failure(shard: int, rows: Rows, error: BaseException) -> ShardFailure:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, DamagedShuffleError):
        return ShardFailure(shard, error_text(error), trace=trace, damaged=error.path)
    is_code = isinstance(error, PERMANENT)
    return ShardFailure(
        shard,
        *rows.described(error),
        "" if rows.row is None or isinstance(error, SeveralRowsError) else _shown(rows.row),
        _user_frame(error),
        trace,
        is_permanent=is_code or (isinstance(error, RowError) and not isinstance(error, UnreadableFileError)),
        ends_stage=is_code,
    )


def _shown(row: Any) -> str:
    """Return the row with its columns, long values cut."""
    if not isinstance(row, dict):
        return truncated_repr(row)
    cells = [f"{truncated_repr(name)}: {truncated_repr(value)}" for name, value in row.items()]
    return "{" + ", ".join(cells[:_MAX_COLUMNS]) + (", …}" if len(cells) > _MAX_COLUMNS else "}")


def _user_frame(error: BaseException) -> str:
    """Return ``file:line, in function`` of the innermost frame of the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error.__cause__, StopIteration):
        frames = traceback.extract_tb(error.__cause__.__traceback__)
    installed = [frame for frame in frames if _INSTALLED.search(frame.filename)]
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN) and frame not in installed]
    if not own and not isinstance(error, (RowError, OSError)):  # the user's package may be installed
        own = [frame for frame in installed if not frame.filename.startswith(_PACKAGE)]
    return f"{posixpath.basename(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}" if own else ""


__all__ = ["COLLECT", "ShardFailure", "ShardResult", "StageWork", "merge_join", "record_path", "run_shard"]
