"""Cut a data set's operations into stages: what one task does for one shard, up to where rows change shards.

A stage's key is a hash of all that its files depend on: the state of the input files, the operations, the bytecode of
the user's functions and the key of the stage before. So a file below a key is never one of other data or of older code.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from tradewind.datasets.dataset import (
    Dataset,
    FilesSource,
    ItemsSource,
    Join,
    Operation,
    Read,
    Shuffle,
    Transform,
    Write,
)
from tradewind.datasets.files import is_remote
from tradewind.datasets.token_inputs import InputFile

_FORMAT: Final = 1
"""Version of the files of a shuffle, part of each key."""
_LARGE_SHARD: Final = 2_000_000_000
_MANY_SHARDS: Final = 50_000
_MANY_PARTS: Final = 10_000_000
_MAX_PARTS: Final = 200_000_000
"""A shuffle of N shards into M reads N × M parts, with two requests each; their index alone has 28 bytes for each."""
_PLAIN: Final = (type(None), bool, int, float, complex, str)


class PipelineError(ValueError):
    """A data set cannot be processed as it is described."""


@dataclass(frozen=True)
class Chain:
    """Operations that one task fuses, and where its rows come from.

    Attributes:
        shards: How many there are.
        items: One item of the source for each shard; None if the rows come from a stage or from files.
        files: Input files of each shard.
        stage: Number of the stage whose output it reads.
        shuffle: How that stage distributed its rows; None if it wrote files, whose paths are the rows.
        operations: Transforms, reads and joins.
    """

    shards: int
    items: tuple[Any, ...] | None = None
    files: tuple[tuple[InputFile, ...], ...] = ()
    stage: int | None = None
    shuffle: Shuffle | None = None
    operations: tuple[Operation, ...] = ()

    def size(self, shard: int) -> int:
        """Return the bytes of a shard's input files."""
        return sum(file.size_bytes for file in self.files[shard]) if self.files else 0

    @property
    def total_size(self) -> int:
        """Bytes of all input files."""
        return sum(self.size(shard) for shard in range(len(self.files)))


@dataclass(frozen=True)
class JoinedChain(Operation):
    """A join whose right side is a chain with as many shards."""

    right: Chain
    join: Join


@dataclass(frozen=True)
class Stage:
    """What one task does for each shard.

    Attributes:
        number: From 0, in the order of execution.
        key: Hash of what its files depend on.
        chain: Where the rows come from, and what is done to them.
        sink: Where they go: to other shards, to files, or (None) back to the caller.
        outputs: Paths of the written files, one for each shard; empty for other sinks.
    """

    number: int
    key: str
    chain: Chain
    sink: Shuffle | Write | None
    outputs: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        """Number of tasks."""
        return self.chain.shards

    @property
    def name(self) -> str:
        """What it does, such as ``load_jsonl → filter → group_by``."""
        return " → ".join(_names(self.chain, self.sink))

    def buckets(self) -> int:
        """Number of shards that a shuffle makes."""
        assert isinstance(self.sink, Shuffle)
        return self.sink.num_shards or self.shards


def plan_stages(
    dataset: Dataset[Any],
    list_files: Callable[[FilesSource], Sequence[InputFile]],
    states_of: Callable[[Sequence[str]], Sequence[InputFile]],
) -> list[Stage]:
    """Return the stages of a data set, in the order of execution.

    Args:
        dataset: The data set.
        list_files: Lists the files of a source; each source is listed once.
        states_of: Returns the files that are the items of a source, as they are now.

    Raises:
        PipelineError: Two data sets to be joined have not as many shards; a file would be written twice; or a shuffle
            has too many parts.
        FileNotFoundError: A source has no files.
    """
    planner = _Planner(list_files, states_of)
    planner.finish(planner.chain_of(dataset), None)
    _check_outputs(planner.stages)
    return planner.stages


class _Planner:
    def __init__(
        self,
        list_files: Callable[[FilesSource], Sequence[InputFile]],
        states_of: Callable[[Sequence[str]], Sequence[InputFile]],
    ) -> None:
        self._list_files = list_files
        self._states_of = states_of
        self._listed: dict[FilesSource, Sequence[InputFile]] = {}
        self.stages: list[Stage] = []

    def chain_of(self, dataset: Dataset[Any]) -> Chain:
        chain = self._source(dataset.source)
        first = dataset.operations[0] if dataset.operations else None
        if isinstance(first, Read) and chain.items and all(isinstance(item, str) for item in chain.items):
            chain = Chain(chain.shards, files=tuple((file,) for file in self._states_of(chain.items)))
        for operation in dataset.operations:
            match operation:
                case Shuffle() as shuffle:
                    stage = self.finish(chain, shuffle)
                    chain = Chain(stage.buckets(), stage=stage.number, shuffle=shuffle)
                case Write() as write:
                    stage = self.finish(chain, write)
                    chain = Chain(stage.shards, stage=stage.number)
                case Join() as join:
                    chain = _extended(chain, self._joined(chain, join))
                case _:
                    chain = _extended(chain, operation)
        return chain

    def finish(self, chain: Chain, sink: Shuffle | Write | None) -> Stage:
        is_only_paths = sink is None and chain.stage is not None and chain.shuffle is None and not chain.operations
        if is_only_paths:  # the paths of written files are the results
            return self.stages[-1]
        try:
            outputs = tuple(sink.output.all(chain.shards)) if isinstance(sink, Write) else ()
        except ValueError as error:
            raise PipelineError(str(error)) from error
        key = self._key(chain, sink, outputs)
        stage = Stage(len(self.stages), key, chain, sink, outputs)
        _check_parts(stage)
        self.stages.append(stage)
        return stage

    def _source(self, source: FilesSource | ItemsSource) -> Chain:
        if isinstance(source, ItemsSource):
            return Chain(len(source.items), source.items)
        if source not in self._listed:
            self._listed[source] = self._list_files(source)
        files = tuple(_joined_files(self._listed[source], source.approx_shard_bytes))
        return Chain(len(files), files=files)

    def _joined(self, chain: Chain, join: Join) -> JoinedChain:
        right = self.chain_of(join.right)
        if right.shards != chain.shards:
            raise PipelineError(
                f"sorted_merge_join: the left data set has {chain.shards:,} shards and the right one {right.shards:,}. "
                "Both need as many, each with the same keys: give both a group_by with one num_output_shards."
            )
        return JoinedChain(join.name, right, join)

    def _key(self, chain: Chain, sink: Operation | None, outputs: Iterable[str]) -> str:
        digest = _Digest()
        self._add_chain(digest, chain)
        digest.add((sink, tuple(outputs)))
        return digest.hexdigest()

    def _add_chain(self, digest: _Digest, chain: Chain) -> None:
        before = None if chain.stage is None else self.stages[chain.stage].key
        files = [[(file.path, file.size_bytes, file.state) for file in shard] for shard in chain.files]
        digest.add((chain.shards, before, files, chain.items, chain.shuffle))
        for operation in chain.operations:
            if isinstance(operation, JoinedChain):
                self._add_chain(digest, operation.right)
                join = operation.join
                digest.add((join.left_key, join.right_key, join.combiner, join.is_left))
            else:
                digest.add(operation)


def _joined_files(files: Iterable[InputFile], size_bytes: int) -> Iterable[tuple[InputFile, ...]]:
    """Yield the files of each shard, in their order: as many as have about ``size_bytes``, at least one."""
    shard: list[InputFile] = []
    size = 0
    for file in files:
        if shard and size + file.size_bytes > size_bytes:
            yield tuple(shard)
            shard, size = [], 0
        shard.append(file)
        size += file.size_bytes
    if shard:
        yield tuple(shard)


def _check_parts(stage: Stage) -> None:
    if isinstance(stage.sink, Shuffle) and (parts := stage.shards * stage.buckets()) > _MAX_PARTS:
        raise PipelineError(
            f"{stage.name}: each of {stage.buckets():,} shards would read a part of {stage.shards:,} files, {parts:,} "
            f"in all, and there may be {_MAX_PARTS:,}. Let {stage.sink.name} make fewer shards, or join small files "
            "with from_files(approx_shard_bytes=...)."
        )


def _extended(chain: Chain, operation: Operation) -> Chain:
    return Chain(**{**vars(chain), "operations": (*chain.operations, operation)})


def _names(chain: Chain, sink: Operation | None) -> Iterable[str]:
    if chain.shuffle is not None:
        yield chain.shuffle.name if chain.shuffle.reducer else f"after {chain.shuffle.name}"
    for operation in chain.operations:
        yield operation.name
    if isinstance(sink, Shuffle):
        yield "shuffle"
    elif sink is not None:
        yield sink.name
    elif not chain.operations and chain.shuffle is None:
        yield "collect"


def _check_outputs(stages: Sequence[Stage]) -> None:
    writers: set[str] = set()
    for stage in stages:
        for path in stage.outputs:
            if _itself(path) in writers:
                raise PipelineError(f"{path} would be written twice: give the two outputs other names.")
            writers.add(_itself(path))
    chains = [chain for stage in stages for chain in _chains(stage.chain)]
    inputs = [file.path for chain in chains for shard in chain.files for file in shard]
    if both := sorted(path for path in inputs if _itself(path) in writers):
        raise PipelineError(f"{both[0]} is read and written: write to another folder.")


def _itself(path: str) -> str:
    """Return one spelling for a path."""
    return path if is_remote(path) else os.path.realpath(path.removeprefix("file://").removeprefix("local://"))


def _chains(chain: Chain) -> Iterable[Chain]:
    yield chain
    for operation in chain.operations:
        if isinstance(operation, JoinedChain):
            yield from _chains(operation.right)


class _Digest:
    """Hash all of a value that its behaviour depends on, as far as it can be seen: the same in each process.

    That is the bytecode of functions and of their helpers, and the values of the file that they use. Functions and
    classes of installed packages count by their names.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256(f"{_FORMAT}".encode())
        self._seen: dict[int, Any] = {}

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:16]

    def add(self, value: Any) -> None:
        pending = [value]
        while pending:
            each = pending.pop()
            self._text(f"<{type(each).__module__}.{type(each).__qualname__}>")
            if isinstance(each, bytes):  # perhaps large
                self._text(str(len(each)))
                self._hash.update(each)
            elif isinstance(each, _PLAIN):
                # The decimals of an int are bounded.
                self._text(hex(each) if type(each) is int else repr(each))
            elif id(each) in self._seen:
                self._text(str(list(self._seen).index(id(each))))
            else:
                self._seen[id(each)] = each  # kept, so that no other value gets its id
                parts = list(self._parts(each))
                self._text(str(len(parts)))
                pending.extend(reversed(parts))

    def _parts(self, value: Any) -> Iterable[Any]:
        match value:
            case FunctionType() if _is_own(value):
                return self._parts_of_function(value)
            case type() if _is_own(value):
                return (value.__qualname__, value.__bases__, _members(value))
            case FunctionType() | BuiltinFunctionType() | type() | ModuleType():
                return (getattr(value, "__module__", None), getattr(value, "__qualname__", value.__name__))
            case MethodType():
                return (value.__func__, value.__self__)
            case staticmethod() | classmethod():
                return (value.__func__,)
            case property():
                return (value.fget,)
            case partial():
                return (value.func, value.args, value.keywords)
            case CodeType():
                return (value.co_code, value.co_names, value.co_consts)
            case list() | tuple():
                return value if type(value) in (list, tuple) else (type(value), *value)
            case set() | frozenset():
                return sorted(value, key=repr)
            case Mapping():
                return [part for pair in sorted(value.items(), key=lambda pair: repr(pair[0])) for part in pair]
            case _:
                return self._parts_of_object(value)

    def _parts_of_function(self, function: FunctionType) -> Iterable[Any]:
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        named = [function.__globals__[name] for name in _names_in(function.__code__) if name in function.__globals__]
        return (function.__code__, function.__defaults__, function.__kwdefaults__, cells, named)

    def _parts_of_object(self, value: Any) -> Iterable[Any]:
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # of functools.cache
            return (wrapped,)
        if isinstance(state := getattr(value, "__dict__", None), dict):
            return (type(value), state)
        return (type(value), *_pickled(value))

    def _text(self, text: str) -> None:
        self._hash.update(text.encode("utf-8", "surrogatepass"))
        self._hash.update(b"\0")


def _is_own(value: Any) -> bool:
    """Whether a function or class is of the user's code or of this package, and not of an installed one.

    Storage counts as installed: what the client of a store holds changes with its use.
    """
    module = str(getattr(value, "__module__", None))
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
    if module.partition(".")[0] in sys.stdlib_module_names and module != "__main__":
        return False
    if module.startswith("tradewind."):
        return not module.startswith("tradewind.storage")
    return not re.search(r"[/\\](site|dist)-packages[/\\]", file)


def _members(owner: type) -> list[Any]:
    """Return what a class defines itself; not what Python adds, such as ``__slotnames__`` when it is pickled."""
    made = ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__", "__slotnames__")
    return [part for name, value in sorted(vars(owner).items()) if name not in made for part in (name, value)]


def _names_in(code: CodeType) -> list[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names_in(each))]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a function that calls itself, while it is defined
        return False
    return True


def _pickled(value: Any) -> tuple[bytes, ...]:
    try:
        return (pickle.dumps(value, protocol=5),)
    except Exception:  # an object whose state cannot be seen: its class alone counts
        return ()


def _advice(stage: Stage) -> str:
    """Return a warning about shards that are too few or too many; one is best done in 1 to 10 minutes."""
    if stage.shards == 1 and stage.chain.total_size > _LARGE_SHARD:
        return ". One shard is processed by one worker: split the file, so that more can work"
    if stage.shards > _MANY_SHARDS:
        return ". So many shards cost more to follow than to process: join files with approx_shard_bytes"
    if isinstance(stage.sink, Shuffle) and (parts := stage.shards * stage.buckets()) > _MANY_PARTS:
        return f". Its {parts:,} parts are a request or two each: fewer shards to make are faster and cheaper"
    return ""


def describe_stages(stages: Sequence[Stage]) -> str:
    """Return the stages as a dry run shows them, one line each."""
    lines = []
    for stage in stages:
        size = f", {stage.chain.total_size:,} bytes" if stage.chain.files else ""
        goal = f" into {stage.buckets():,} shards" if isinstance(stage.sink, Shuffle) else ""
        count = "1 shard" if stage.shards == 1 else f"{stage.shards:,} shards"
        lines.append(f"Stage {stage.number + 1}: {count}{size}: {stage.name}{goal}{_advice(stage)}")
    return "\n".join(lines)


__all__ = ["Chain", "JoinedChain", "PipelineError", "Read", "Stage", "Transform", "describe_stages", "plan_stages"]
