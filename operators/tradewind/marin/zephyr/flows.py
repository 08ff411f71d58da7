"""Zephyr's data sets and backends of November 2025, as far as their words differ from Tradewind's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, Final

from tradewind.datasets import backends, dataset
from tradewind.datasets.backends import Backend
from tradewind.datasets.dataset import ItemsSource, Operation, Pattern, ShardInfo
from tradewind.datasets.files import join
from tradewind.datasets.rows import Rows
from tradewind.marin.zephyr.conversion import converted
from tradewind.storage import file_system_at
from tradewind.text import truncated_repr

__all__ = ["Dataset", "atomic_rename", "create_backend", "flow_backend", "write_jsonl_file", "write_parquet_file"]

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
    def from_files(  # type: ignore[override]
        pattern: str, glob: str | bool = False, empty_glob_ok: bool = False
    ) -> Dataset:
        """Return the paths of all files that match ``pattern``, or in the older form ``glob`` below that folder."""
        if isinstance(glob, str):
            pattern, glob = join(pattern, glob), False
        return Dataset(dataset.Dataset.from_files(pattern, glob or empty_glob_ok).source)

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

    def execute(self, dataset: Any) -> Any:
        """Process ``dataset``; see ``Backend.execute``."""
        return super().execute(converted(dataset))


def flow_backend(max_parallelism: int | None = None, memory: str | None = None, **options: Any) -> FlowBackend:
    """Return the current backend, with these changes; in a job of a Ray cluster, that is Ray."""
    return _with_conversion(backends.flow_backend(max_parallelism, memory, **_effective(options)))


def create_backend(
    backend_type: str = "auto", max_parallelism: int = 100, memory: str | None = None, **options: Any
) -> FlowBackend:
    """Return a backend of this kind: ``ray``, ``threadpool``, ``sync``, or ``auto`` for what ``flow_backend`` takes."""
    if backend_type == "auto":
        return flow_backend(max_parallelism, memory, **options)
    return _with_conversion(
        backends.create_backend(backend_type, max_parallelism, memory, **_effective(options))  # type: ignore[arg-type]
    )


def _effective(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}


def _with_conversion(backend: Backend) -> FlowBackend:
    return FlowBackend(**{field.name: getattr(backend, field.name) for field in fields(Backend)})


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
