"""Zephyr's data sets and backends of November 2025, as far as their words differ from Tradewind's."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial, wraps
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

from tradewind.datasets import backends, dataset, readers
from tradewind.datasets.backends import Backend
from tradewind.datasets.dataset import ItemsSource, Operation, Pattern, ShardInfo, Write
from tradewind.datasets.rows import Rows
from tradewind.datasets.token_rows import open_unpacked
from tradewind.marin.zephyr.conversion import converted
from tradewind.storage import file_system_at
from tradewind.text import single_line, truncated_repr

__all__ = [
    "SUPPORTED_EXTENSIONS", "Dataset", "accept_old_calls", "atomic_rename", "create_backend", "flow_backend",
    "open_file", "write_jsonl_file", "write_parquet_file",
]  # fmt: skip

SUPPORTED_EXTENSIONS: Final = (
    *(f".{kind}{packed}" for kind in ("json", "jsonl") for packed in ("", ".bz2", ".gz", ".zst", ".zstd")), ".parquet",
)  # fmt: skip
"""Endings of the files that ``load_file`` reads."""
_WITHOUT_EFFECT: Final = ("chunk_size", "max_retries")
"""Options of a backend that say how Zephyr moves rows and repeats tasks; a shard has budgets of its own."""


class Dataset(dataset.Dataset[Any]):
    """A data set whose methods take what Zephyr's took."""

    @staticmethod
    def from_list(items: Sequence[Any]) -> Dataset:
        """Return a data set with one shard for each item."""
        return Dataset(ItemsSource(tuple(items)))

    @staticmethod
    def from_iterable(items: Iterable[Any]) -> Dataset:
        """Return a data set with one shard for each item."""
        return Dataset(ItemsSource(tuple(items)))

    @staticmethod
    def from_files(pattern: str, *more: Any, **options: Any) -> Dataset:
        """Return the paths of all files that match a glob, one shard each."""
        return Dataset(dataset.Dataset.from_files(pattern, *more, **options).source)

    def map_shard(self, fn: Callable[..., Iterable[Any]]) -> Dataset:
        """Return what ``fn`` makes of the rows of a shard; it may also take a ``ShardInfo``."""
        return super().map_shard(both_arguments(fn))  # type: ignore[return-value]

    def group_by(
        self, key: Callable[..., Any], reducer: Callable[..., Any], num_output_shards: int | None = None, **more: Any
    ) -> Dataset:
        """Return ``reducer(key, rows)`` for the rows of each key."""
        return super().group_by(key, reducer=reducer, num_output_shards=num_output_shards, **more)  # type: ignore[return-value]

    def write_parquet(  # type: ignore[override]
        self, output_pattern: Pattern, schema: Any = None, batch_size: int = 1000, skip_existing: bool = False
    ) -> Dataset:
        """Write each shard as Parquet; ``batch_size`` has no effect."""
        return super().write_parquet(output_pattern, schema, skip_existing)  # type: ignore[return-value]

    def _with(self, operation: Operation) -> Dataset:
        return Dataset(self.source, (*self.operations, operation))


def both_arguments(fn: Callable[..., Any]) -> Callable[[Iterator[Any], ShardInfo], Any]:
    """Return a function of rows and ``ShardInfo``; ``fn`` may require only the rows."""
    if not callable(fn):
        return fn
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # of C: the rows alone
        return partial(_of_rows, fn)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.kind in kinds and each.default is each.empty]
    return fn if len(required) > 1 else partial(_of_rows, fn)


def _of_rows(fn: Callable[[Iterator[Any]], Any], rows: Iterator[Any], _: ShardInfo) -> Any:
    return fn(rows)


class FlowBackend(Backend):
    """A backend that also executes the data sets of an installed Zephyr."""

    def execute(self, dataset: Any, verbose: bool = False) -> Any:
        """Process ``dataset``; see ``Backend.execute``. ``verbose`` has no effect.

        In this process a function may leave what it finds in a variable, so rows that no file holds are made anew
        each time: neither an earlier attempt nor the same pipeline in another thread counts.
        """
        ours = converted(dataset)
        writes = bool(ours.operations) and isinstance(ours.operations[-1], Write)
        if writes or self.kind == "ray" or self.scratch is not None:
            return super().execute(ours)
        with TemporaryDirectory(prefix="tradewind-dataset-") as scratch:
            return replace(self, scratch=scratch).execute(ours)


def flow_backend(max_parallelism: int | None = None, memory: str | None = None, **options: Any) -> FlowBackend:
    """Return the current backend, with these changes; in a job of a Ray cluster, that is Ray."""
    return _with_conversion(backends.flow_backend(max_parallelism, memory, **_effective(options)))


def create_backend(
    backend_type: str = "auto", max_parallelism: int = 100, memory: str | None = None, **options: Any
) -> FlowBackend:
    """Return a backend of this kind: ``ray``, ``threadpool``, ``sync``, or ``auto`` for what ``flow_backend`` takes."""
    if backend_type == "auto":
        return flow_backend(max_parallelism, memory, **options)
    try:
        made = backends.create_backend(backend_type, max_parallelism, memory, **_effective(options))  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"create_backend: {single_line(error).removeprefix('Backend.__init__() ')}.") from error
    return _with_conversion(made)


def _effective(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}


def _with_conversion(backend: Backend) -> FlowBackend:
    return FlowBackend(**{field.name: getattr(backend, field.name) for field in fields(Backend)})


def accept_old_calls(module: ModuleType) -> None:
    """Let what a module of an installed Zephyr has accept the calls of November 2025 as well."""
    if module.__name__ == "zephyr.dataset":
        theirs = vars(module)["Dataset"]
        theirs.group_by = _group_by(theirs.group_by)
        theirs.write_parquet = _write_parquet(theirs.write_parquet)
    for name in ("load_file", "load_parquet", "load_zip_members"):
        if name in vars(module):
            vars(module)[name] = _with_options(vars(module)[name], getattr(readers, name))


def _group_by(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def group_by(self: Any, /, *args: Any, **words: Any) -> Any:
        return theirs(self, **dict(zip(("key", "reducer", "num_output_shards"), args, strict=False)), **words)

    return group_by


def _write_parquet(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def write_parquet(
        self: Any, output_pattern: Any, schema: Any = None, batch_size: Any = None, skip_existing: bool = False
    ) -> Any:
        return theirs(self, output_pattern, schema, skip_existing or batch_size is True)

    return write_parquet


def _with_options(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def load(source: Any, *args: Any, **options: Any) -> Any:
        return ours(source, *args, **options) if isinstance(source, str) and options else theirs(source, *args)

    return load


@contextmanager
def open_file(file_path: str, mode: str = "rb") -> Iterator[Any]:
    """Open a file that may be packed for reading of its content."""
    if mode not in ("rb", "r", "rt"):
        raise ValueError(f"open_file(mode={truncated_repr(mode)}): it opens for reading.")
    with open_unpacked(file_path) as file:
        yield file if mode == "rb" else io.TextIOWrapper(file, "utf-8")


@contextmanager
def atomic_rename(output_path: str) -> Iterator[str]:
    """Yield the path of a temporary file, which gets the name ``output_path`` if the block succeeds."""
    temporary = f"{output_path}.tmp"
    fs, path = file_system_at(temporary)
    try:
        yield temporary
    except BaseException:
        if fs.exists(path):
            fs.rm(path, recursive=True)
        raise
    fs.mv(path, file_system_at(output_path)[1], recursive=True)


def write_jsonl_file(records: Iterable[Any], output_path: str) -> dict[str, Any]:
    """Write rows as JSON lines, packed as the ending says; return ``path`` and ``count``."""
    return _written("jsonl", records, output_path, {})


def write_parquet_file(
    records: Iterable[Any], output_path: str, schema: Any = None, batch_size: int = 1000
) -> dict[str, Any]:
    """Write rows as Parquet; return ``path`` and ``count``. ``batch_size`` has no effect."""
    return _written("parquet", records, output_path, {"schema": schema})


def _written(kind: str, records: Iterable[Any], path: str, options: dict[str, Any]) -> dict[str, Any]:
    from tradewind.datasets.writers import write_rows

    if not isinstance(path, str) or not path:
        raise ValueError(f"write_{kind}_file({truncated_repr(path)}): give a path.")
    return {"path": path, "count": write_rows(kind, path, records, Rows(), options).rows}
