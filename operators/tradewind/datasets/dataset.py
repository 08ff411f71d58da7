"""Describe how data is processed: a source and a chain of operations on it, which nothing runs yet.

    texts = Dataset.from_files("gs://bucket/raw/*.jsonl.gz").load_jsonl().filter(is_long).map(strip)
    flow_backend().execute(texts.write_jsonl("gs://bucket/clean/data-{shard:05d}-of-{total:05d}.jsonl.gz"))

Words and semantics are those of Zephyr, Marin's engine: each item of the source is one shard, and an operation keeps
shards apart unless it is ``group_by``, ``deduplicate``, ``reshard``, ``reduce`` or ``count``.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from tradewind.datasets.cache_rows import LEDGER_FILE, token_row, write_tokens
from tradewind.datasets.files import join
from tradewind.datasets.rows import selected
from tradewind.steps.amounts import parse_size
from tradewind.text import single_line, truncated_repr

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")

FILE_PATH_COLUMN: Final = "file_path"
"""Column that readers add with ``include_file_paths=True``."""
RECORD_TYPES: Final = (
    "warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion", "continuation",
)  # fmt: skip
"""Types of records in WARC files."""

Pattern = str | Callable[[int, int], str]
"""A text with ``{shard}``, ``{total}`` and ``{basename}``, or a function of a shard's number and their total."""
_WIDTH: Final = re.compile(r"(0?[0-9]{1,2})?d?")
_FORMATS: Final = {"shard": _WIDTH, "total": _WIDTH, "basename": re.compile("")}
_DOCUMENTS_PER_BATCH: Final = 256
"""Rows whose tokens are written at once."""
_DOUBLE_SLASHES: Final = re.compile(r"(?<![:/])/{2,}")


@dataclass(frozen=True)
class ShardInfo:
    """Which shard a function of ``map_shard`` gets: ``shard_idx`` of ``total_shards``, from 0."""

    shard_idx: int
    total_shards: int


@dataclass(frozen=True)
class FilesSource:
    """The files that match a glob when the data set is processed, sorted by path."""

    pattern: str
    empty_glob_ok: bool = False
    approx_shard_bytes: int = 0


@dataclass(frozen=True)
class ItemsSource:
    """Items that are there already, one shard each."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Operation:
    """One link of the chain; ``name`` is what users call it."""

    name: str


@dataclass(frozen=True)
class Transform(Operation):
    """Make an iterator of rows from one, shard by shard.

    Attributes:
        kind: ``map``, ``flat_map``, ``filter``, ``map_shard`` or ``window``.
        fn: The user's function; of ``window`` the folder.
        initial: State at the beginning of a window.
    """

    kind: str
    fn: Callable[..., Any]
    initial: Any = None


@dataclass(frozen=True)
class Read(Operation):
    """Read the file whose path each row is.

    Attributes:
        kind: Name of a reader in ``tradewind.datasets.readers``.
        options: Its keyword arguments.
        path_column: Column to add with the file's path.
    """

    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    path_column: str | None = None


@dataclass(frozen=True)
class FilePattern:
    """Name the file of each shard.

    Attributes:
        method: Name of the writing method, for errors.
        pattern: As users give it.

    Raises:
        ValueError: The pattern has other fields, or other formats of them than a width.
    """

    method: str
    pattern: Pattern

    def __post_init__(self) -> None:
        if callable(self.pattern):
            return
        if not isinstance(self.pattern, str) or not self.pattern.strip("/ "):
            raise ValueError(f"{self.method}({truncated_repr(self.pattern)}): give a pattern or a function.")
        try:
            fields = [entry for entry in string.Formatter().parse(self.pattern) if entry[1] is not None]
        except ValueError as error:
            raise ValueError(f"{self.method}({truncated_repr(self.pattern)}): {error}.") from error
        for _, name, form, conversion in fields:
            if conversion or name not in _FORMATS or not _FORMATS[name].fullmatch(form or ""):
                field = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}"
                raise ValueError(
                    f"{self.method}({truncated_repr(self.pattern)}): {single_line(field, 40)} is unknown: there are "
                    "{shard} and {total}, also with a width up to 99, such as {shard:05d}, and {basename}."
                )

    def of(self, shard: int, total: int) -> str:
        """Return the name of one shard's file."""
        if callable(self.pattern):
            name = self.pattern(shard, total)
            if not isinstance(name, str) or not name:
                raise ValueError(f"{self.method}: the function of names returned {truncated_repr(name)} for {shard}.")
            return name
        name = self.pattern.format(shard=shard, total=total, basename=f"shard_{shard}")
        return _DOUBLE_SLASHES.sub("/", name)

    def all(self, total: int) -> Sequence[str]:
        """Return the names of all shards' files.

        Raises:
            ValueError: Two shards have one name.
        """
        names = [self.of(shard, total) for shard in range(total)]
        name, count = Counter(names).most_common(1)[0] if names else ("", 0)
        if count > 1:
            raise ValueError(
                f"{self.method}: {count:,} of {total:,} shards have the name {truncated_repr(name)}: put {{shard}} "
                "into the pattern."
            )
        return names


@dataclass(frozen=True)
class Write(Operation):
    """Write each shard to a file, and continue with the path of that file.

    Attributes:
        kind: Name of a writer in ``tradewind.datasets.writers``.
        output: Name of the file of each shard.
        skip_existing: Keep a file that exists.
        options: Keyword arguments of the writer.
    """

    kind: str
    output: FilePattern
    skip_existing: bool = False
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Shuffle(Operation):
    """Distribute rows to other shards, by key if there is one, else in turn.

    Attributes:
        num_shards: Number of shards that it makes; None for as many as there are.
        key: Rows of one key come to one shard.
        sort_by: Order of the rows of one key; else the order of their shards.
        combiner: Reduces the rows of one key within a shard beforehand.
        reducer: Makes the results of the rows of one key.
    """

    num_shards: int | None
    key: Callable[[Any], Any] | None = None
    sort_by: Callable[[Any], Any] | None = None
    combiner: Callable[[Any, Iterator[Any]], Any] | None = None
    reducer: Callable[[Any, Iterator[Any]], Any] | None = None


@dataclass(frozen=True)
class Join(Operation):
    """Join each shard with the same shard of another data set; both are sorted by key."""

    right: Dataset[Any]
    left_key: Callable[[Any], Any]
    right_key: Callable[[Any], Any]
    combiner: Callable[[Any, Any], Any]
    is_left: bool


@dataclass(frozen=True)
class Dataset(Generic[T]):
    """A source and a chain of operations; each method returns a longer one."""

    source: FilesSource | ItemsSource
    operations: tuple[Operation, ...] = ()

    @staticmethod
    def from_list(items: Sequence[R]) -> Dataset[R]:
        """Return a data set with one shard for each item."""
        return Dataset(ItemsSource(tuple(items)))

    @staticmethod
    def from_iterable(items: Iterable[R]) -> Dataset[R]:
        """Return a data set with one shard for each item."""
        return Dataset(ItemsSource(tuple(items)))

    @staticmethod
    def from_files(
        pattern: str, empty_glob_ok: bool | str = False, approx_shard_bytes: int | str | None = None
    ) -> Dataset[str]:
        """Return the paths of all files that match a glob, one shard each; ``{a,b}`` matches both.

        The files are listed when the data set is processed. No file at all is then a ``FileNotFoundError``, unless
        ``empty_glob_ok``. With ``approx_shard_bytes``, such as ``"200MB"``, small files that follow one another are
        joined into shards of at most that size. ``from_files(folder, glob)`` is the older form.
        """
        _check_text("from_files", "pattern", pattern)
        if isinstance(empty_glob_ok, str):
            pattern, empty_glob_ok = join(pattern, empty_glob_ok), False
        size = 0 if approx_shard_bytes is None else parse_size(approx_shard_bytes, "from_files: approx_shard_bytes")
        return Dataset(FilesSource(pattern, empty_glob_ok, size))

    def map(self, fn: Callable[[T], R]) -> Dataset[R]:
        """Return ``fn(row)`` for each row."""
        return self._transformed("map", fn)

    def flat_map(self, fn: Callable[[T], Iterable[R]]) -> Dataset[R]:
        """Return all rows that ``fn(row)`` yields for each row; ``flat_map(load_jsonl)`` is ``load_jsonl()``."""
        if kind := getattr(fn, "dataset_reader", None):
            return self._reading(kind, False, FILE_PATH_COLUMN)
        return self._transformed("flat_map", fn)

    def filter(self, predicate: Callable[[T], Any]) -> Dataset[T]:
        """Keep the rows for which ``predicate(row)`` is true."""
        return self._transformed("filter", predicate)

    def select(self, *columns: str) -> Dataset[dict[str, Any]]:
        """Keep these columns of each row, in this order; a row without one is an error."""
        return self._transformed("map", _Select(_names(columns) or ()), "select")

    def map_shard(self, fn: Callable[[Iterator[T], ShardInfo], Iterable[R]]) -> Dataset[R]:
        """Return what ``fn`` makes of the iterator of all rows of a shard."""
        return self._transformed("map_shard", fn)

    def take_per_shard(self, n: int) -> Dataset[T]:
        """Keep the first ``n`` rows of each shard."""
        return self._transformed("map_shard", _Take(_count("take_per_shard", "n", n, 0)), "take_per_shard")

    def window(self, size: int) -> Dataset[list[T]]:
        """Return lists of ``size`` rows; the last list of a shard may be shorter."""
        return self._transformed("window", _CountTo(_count("window", "size", size)), "window", 0)

    batch = window

    def window_by(self, folder_fn: Callable[[Any, T], tuple[bool, Any]], initial_state: Any = None) -> Dataset[list[T]]:
        """Return lists of rows: ``folder_fn(state, row)`` returns whether the row joins the list, and the next state.

        A row that does not join begins the next list, with ``folder_fn(initial_state, row)``.
        """
        return self._transformed("window", folder_fn, "window_by", initial_state)

    def load_file(
        self,
        columns: Sequence[str] | None = None,
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Dataset[dict[str, Any]]:
        """Read the rows of JSON lines or Parquet files, by their endings; ``columns`` keeps only these."""
        return self._reading("load_file", include_file_paths, file_path_column, columns=_names(columns))

    def load_jsonl(
        self, include_file_paths: bool = False, file_path_column: str = FILE_PATH_COLUMN
    ) -> Dataset[dict[str, Any]]:
        """Read the rows of JSON lines files: plain, ``.gz``, ``.zst`` or ``.bz2``."""
        return self._reading("load_jsonl", include_file_paths, file_path_column)

    def load_parquet(
        self,
        columns: Sequence[str] | None = None,
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
        *,
        batch_mode: bool = False,
    ) -> Dataset[Any]:
        """Read the rows of Parquet files as dicts, or in ``batch_mode`` as ``pyarrow.RecordBatch``."""
        options = {"columns": _names(columns), "batch_mode": batch_mode}
        return self._reading("load_parquet", include_file_paths, file_path_column, **options)

    def load_text(
        self, include_file_paths: bool = False, file_path_column: str = FILE_PATH_COLUMN
    ) -> Dataset[dict[str, Any]]:
        """Read each file as one row ``{"text": ...}``; it may be packed."""
        return self._reading("load_text", include_file_paths, file_path_column)

    def load_warc(
        self,
        record_types: Sequence[str] = ("response",),
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Dataset[dict[str, Any]]:
        """Read the records of WARC files, plain or packed as ``.gz`` or ``.zst``; the body of a response is decoded.

        A row has ``url``, ``date``, ``record_id``, ``record_type``, ``status``, ``content_type``, ``headers`` of HTTP
        with names in lower case, ``truncated``, why the writer cut the record, and ``payload``, the bytes.
        """
        kinds = record_types_of(record_types)
        return self._reading("load_warc", include_file_paths, file_path_column, record_types=kinds)

    def load_zip_members(
        self,
        pattern: str = "*",
        include_file_paths: bool = False,
        file_path_column: str = FILE_PATH_COLUMN,
    ) -> Dataset[dict[str, Any]]:
        """Read the members of zip archives whose names match ``pattern``: rows ``{"filename", "content"}``."""
        _check_text("load_zip_members", "pattern", pattern)
        return self._reading("load_zip_members", include_file_paths, file_path_column, pattern=pattern)

    def group_by(
        self,
        key: Callable[[T], K],
        *,
        reducer: Callable[[K, Iterator[T]], Any],
        sort_by: Callable[[T], Any] | None = None,
        num_output_shards: int | None = None,
        combiner: Callable[[K, Iterator[T]], Any] | None = None,
    ) -> Dataset[Any]:
        """Return ``reducer(key, rows)`` for the rows of each key of the whole data set.

        Args:
            key: Strings, numbers, bytes, None, or tuples of these; the keys of one data set can be compared.
            reducer: Returns one result, or yields any number. Each shard's results are in the order of their keys.
            sort_by: Order of the rows of one key; else that of their shards and of the rows in them.
            num_output_shards: Number of shards that it makes; None for as many as there are.
            combiner: Reduces the rows of one key within a shard before they are sent. It returns or yields rows.
        """
        shards = None if num_output_shards is None else _count("group_by", "num_output_shards", num_output_shards)
        for name, fn in (("key", key), ("reducer", reducer), ("sort_by", sort_by), ("combiner", combiner)):
            if name in ("key", "reducer") or fn is not None:
                _check_function(f"group_by({name}=", fn)
        return self._with(Shuffle("group_by", shards, key, sort_by, combiner, reducer))

    def deduplicate(self, key: Callable[[T], Any], num_output_shards: int | None = None) -> Dataset[T]:
        """Keep the first row of each key of the whole data set, in the order of the keys."""
        shards = None if num_output_shards is None else _count("deduplicate", "num_output_shards", num_output_shards)
        _check_function("deduplicate(", key)
        return self._with(Shuffle("deduplicate", shards, key, None, first_row, first_row))

    def reshard(self, num_shards: int | None) -> Dataset[T]:
        """Distribute the rows evenly over ``num_shards`` shards; None changes nothing."""
        if num_shards is None:
            return self
        return self._with(Shuffle("reshard", _count("reshard", "num_shards", num_shards)))

    def reduce(
        self,
        local_reducer: Callable[[Iterator[T]], R],
        global_reducer: Callable[[Iterator[R]], R] | None = None,
    ) -> Dataset[R]:
        """Reduce the rows of each shard to one value, and these to a single one."""
        for reducer in (local_reducer, global_reducer or local_reducer):
            _check_function("reduce(", reducer)
        local = self._transformed("map_shard", _Reduce(local_reducer), "reduce")
        return local._with(Shuffle("reduce", 1))._transformed(
            "map_shard", _Reduce(cast("Callable[..., R]", global_reducer or local_reducer)), "reduce"
        )

    def count(self) -> Dataset[int]:
        """Return a single row, the number of rows."""
        return self.reduce(_length, sum)

    def sorted_merge_join(
        self,
        right: Dataset[R],
        left_key: Callable[[T], Any],
        right_key: Callable[[R], Any],
        combiner: Callable[[T, R | None], Any] | None = None,
        how: str = "inner",
    ) -> Dataset[Any]:
        """Join each shard with the same shard of ``right``; both have as many shards, each sorted by key.

        Two data sets that ``group_by`` made, with one key and number of shards, are like that. A shard that is not
        sorted fails.

        Args:
            right: The other data set.
            left_key: Key of a row of this one.
            right_key: Key of a row of ``right``.
            combiner: Of each pair of rows with one key; the default merges two dicts.
            how: ``inner``, or ``left`` to keep rows without a partner, with None as the other row.
        """
        if how not in ("inner", "left"):
            raise ValueError(f"sorted_merge_join(how={truncated_repr(how)}): there are 'inner' and 'left'.")
        if not isinstance(right, Dataset):
            raise ValueError(f"sorted_merge_join({truncated_repr(right)}): give a Dataset.")
        for fn in (left_key, right_key, combiner or _merge_rows):
            _check_function("sorted_merge_join(", fn)
        return self._with(Join("sorted_merge_join", right, left_key, right_key, combiner or _merge_rows, how == "left"))

    def write_jsonl(self, output_pattern: Pattern, skip_existing: bool = False) -> Dataset[str]:
        """Write each shard as JSON lines, packed as the ending says: ``.gz`` at level 1, or ``.zst``."""
        return self._writing("jsonl", output_pattern, skip_existing)

    def write_parquet(self, output_pattern: Pattern, schema: Any = None, skip_existing: bool = False) -> Dataset[str]:
        """Write each shard as Parquet; without a ``pyarrow.Schema`` the first 10,000 rows of each shard give one.

        A row that does not fit is an error: no column or field is left out, and no number is cut.
        """
        if schema is not None and not hasattr(schema, "field"):
            raise ValueError(f"write_parquet(schema={truncated_repr(schema)}): give a pyarrow.Schema.")
        return self._writing("parquet", output_pattern, skip_existing, schema=schema)

    def write_binary(
        self, output_pattern: Pattern, skip_existing: bool = False, *, is_packed: bool = False
    ) -> Dataset[str]:
        """Write the bytes of each shard's rows one after another; ``is_packed`` if they are as the ending says."""
        options = {"is_packed": True} if is_packed else {}
        return self._writing("binary", output_pattern, skip_existing, **options)

    def write_levanter_cache(
        self, output_path: str, metadata: Mapping[str, Any] | None = None, skip_existing: bool = False
    ) -> Dataset[str]:
        """Write all rows, in the order of the shards, as one token cache, and continue with the path of its ledger.

        Rows are columns of token ids, ``{"input_ids": [1, 2]}``; all have the same. ``metadata`` is the ledger's.
        """
        _check_text("write_levanter_cache", "output_path", output_path)
        if set("{}") & set(output_path):
            raise ValueError(f"write_levanter_cache({truncated_repr(output_path)}): give a folder; it is one cache.")
        try:
            held = json.loads(json.dumps(metadata or {}))
        except (TypeError, ValueError) as error:
            raise ValueError(f"write_levanter_cache(metadata={truncated_repr(metadata)}): {error}.") from error
        checked = self._transformed("map", token_row, "write_levanter_cache").window(_DOCUMENTS_PER_BATCH)
        tokens = checked.map_shard(write_tokens)._with(Shuffle("write_levanter_cache", 1))
        ledger = FilePattern("write_levanter_cache", join(output_path, LEDGER_FILE))
        write = Write("write_levanter_cache", "levanter_cache", ledger, skip_existing, (("metadata", held),))
        return cast("Dataset[str]", tokens._with(write))

    def _transformed(
        self, kind: str, fn: Callable[..., Any], name: str | None = None, initial: Any = None
    ) -> Dataset[Any]:
        _check_function(f"{name or kind}(", fn)
        return self._with(Transform(name or kind, kind, fn, initial))

    def _reading(self, kind: str, with_path: bool, column: str, **options: Any) -> Dataset[Any]:
        _check_text(kind, "file_path_column", column)
        return self._with(Read(kind, kind, tuple(options.items()), column if with_path else None))

    def _writing(self, kind: str, pattern: Pattern, skip_existing: bool, **options: Any) -> Dataset[str]:
        if isinstance(pattern, str) and pattern.endswith((".bz2", ".xz", ".zip", ".lz4")):
            raise ValueError(f"write_{kind}({truncated_repr(pattern)}): files are packed as .gz or .zst.")
        output = FilePattern(f"write_{kind}", pattern)
        return self._with(Write(f"write_{kind}", kind, output, skip_existing, tuple(options.items())))

    def _with(self, operation: Operation) -> Dataset[Any]:
        return Dataset(self.source, (*self.operations, operation))


@dataclass(frozen=True)
class _Select:
    columns: tuple[str, ...]

    def __call__(self, row: Any) -> dict[str, Any]:
        return selected(row, self.columns)


@dataclass(frozen=True)
class _Take:
    n: int

    def __call__(self, rows: Iterator[Any], _: ShardInfo) -> Iterator[Any]:
        for _number, row in zip(range(self.n), rows):  # noqa: B905  the range first: no row too many is read
            yield row


@dataclass(frozen=True)
class _CountTo:
    size: int

    def __call__(self, count: int, _: Any) -> tuple[bool, int]:
        return count < self.size, count + 1


@dataclass(frozen=True)
class _Reduce:
    reducer: Callable[[Iterator[Any]], Any]

    def __call__(self, rows: Iterator[Any], _: ShardInfo) -> Iterator[Any]:
        yield self.reducer(rows)


def first_row(_: Any, rows: Iterator[Any]) -> Any:
    """Return the first row of a key; a shuffle knows it, and does not unpack the others."""
    return next(rows)


def _length(rows: Iterator[Any]) -> int:
    return sum(1 for _ in rows)


def _merge_rows(left: Any, right: Any) -> Any:
    return dict(left) if right is None else {**left, **right}


def record_types_of(given: Any) -> tuple[str, ...]:
    """Return the types of records to read.

    Raises:
        ValueError: There are none, or one does not exist.
    """
    if isinstance(given, str) or not isinstance(given, Sequence) or not given or set(given) - set(RECORD_TYPES):
        raise ValueError(
            f"load_warc(record_types={truncated_repr(given)}): give a list of some of {', '.join(RECORD_TYPES)}."
        )
    return tuple(given)


def _names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str) or not columns or not all(isinstance(column, str) for column in columns):
        raise ValueError(f"columns={truncated_repr(columns)}: give a list of names.")
    return tuple(columns)


def _count(method: str, argument: str, value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{method}({argument}={truncated_repr(value)}): give a whole number of at least {least}.")
    return value


def _check_function(where: str, fn: Any) -> None:
    if not callable(fn):
        raise ValueError(f"{where}{truncated_repr(fn)}): give a function.")


def _check_text(method: str, argument: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{method}({argument}={truncated_repr(value)}): give a text.")
