"""Convert a data set of an installed Zephyr to Tradewind's, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from tradewind.datasets import readers
from tradewind.datasets.dataset import Dataset
from tradewind.datasets.stages import PipelineError
from tradewind.text import truncated_repr

__all__ = ["converted"]


def converted(theirs: Any) -> Dataset[Any]:
    """Return Tradewind's data set that does the same; one of Tradewind's is returned as it is.

    Raises:
        PipelineError: An operation has no counterpart, or it is no data set.
    """
    from tradewind.marin.zephyr import flows

    if isinstance(theirs, Dataset):
        return theirs
    if not hasattr(theirs, "source") or not hasattr(theirs, "operations"):
        raise PipelineError(f"execute({truncated_repr(theirs)}): give a Dataset.")
    source = theirs.source
    if hasattr(source, "pattern"):
        ours: Any = flows.Dataset.from_files(source.pattern, source.empty_glob_ok)
    else:
        ours = flows.Dataset.from_iterable(source)
    for operation in theirs.operations:
        convert = _CONVERSIONS.get(type(operation).__name__)
        if convert is None:
            raise PipelineError(f"Zephyr's {operation!r} is not in Tradewind's engine.")
        ours = convert(ours, operation)
    return cast("Dataset[Any]", ours)


def _flat_map(ours: Any, theirs: Any) -> Any:
    fn = theirs.fn
    if getattr(fn, "__module__", "") == "zephyr.readers":
        fn = getattr(readers, fn.__name__, fn)
    return ours.flat_map(fn)


def _load(ours: Any, theirs: Any) -> Any:
    if theirs.format not in ("auto", "jsonl", "parquet") or getattr(theirs, "approx_shard_bytes", None):
        raise PipelineError(
            f"Zephyr's {theirs!r} is not in Tradewind's engine, which reads whole JSON lines and Parquet."
        )
    options: dict[str, Any] = {"include_file_paths": theirs.include_file_paths}
    if theirs.include_file_paths:
        options["file_path_column"] = theirs.file_path_column
    match theirs.format:
        case "jsonl":
            return ours.load_jsonl(**options)
        case "parquet":
            return ours.load_parquet(theirs.columns, **options, batch_mode=theirs.batch_mode)
    return ours.load_file(theirs.columns, **options)


def _write(ours: Any, theirs: Any) -> Any:
    match theirs.writer_type:
        case "jsonl":
            return ours.write_jsonl(theirs.output_pattern, theirs.skip_existing)
        case "binary":
            return ours.write_binary(theirs.output_pattern, theirs.skip_existing)
        case "parquet":
            return ours.write_parquet(theirs.output_pattern, theirs.schema, skip_existing=theirs.skip_existing)
    raise PipelineError(f"Zephyr's {theirs!r} is not in Tradewind's engine: it writes JSON lines, Parquet and bytes.")


def _group(ours: Any, theirs: Any) -> Any:
    return ours.group_by(
        theirs.key_fn,
        theirs.reducer_fn,
        theirs.num_output_shards,
        sort_by=getattr(theirs, "sort_fn", None),
        combiner=getattr(theirs, "combiner_fn", None),
    )


def _join(ours: Any, theirs: Any) -> Any:
    right = converted(theirs.right_dataset)
    keys = (theirs.left_key_fn, theirs.right_key_fn)
    return ours.sorted_merge_join(right, *keys, theirs.combiner_fn, str(theirs.join_type))


_CONVERSIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "MapOp": lambda ours, theirs: ours.map(theirs.fn),
    "FilterOp": lambda ours, theirs: ours.filter(theirs.predicate),
    "SelectOp": lambda ours, theirs: ours.select(*theirs.columns),
    "TakePerShardOp": lambda ours, theirs: ours.take_per_shard(theirs.n),
    "WindowOp": lambda ours, theirs: ours.window_by(theirs.folder_fn, theirs.initial_state),
    "FlatMapOp": _flat_map,
    "LoadFileOp": _load,
    "MapShardOp": lambda ours, theirs: ours.map_shard(theirs.fn),
    "ReshardOp": lambda ours, theirs: ours.reshard(theirs.num_shards),
    "GroupByOp": _group,
    "ReduceOp": lambda ours, theirs: ours.reduce(theirs.local_reducer, theirs.global_reducer),
    "WriteOp": _write,
    "JoinOp": _join,
}
"""Class of an operation in ``zephyr.dataset`` → the same on a data set of Tradewind's."""
