"""Measure how much of evaluation sets occurs in training sets, by length of the runs of words that they share.

An item overlaps with a training set if any of its runs of so many words occurs in any document of it.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, counters, dataset_step, flow_backend
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, write_json, write_text
from tradewind.datasets.readers import load_parquet
from tradewind.datasets.token_inputs import InputFile
from tradewind.recipes.data.document_sets import (
    PART,
    attribute_schema,
    checked_rows,
    dataset_of,
    part_pattern,
    path_input,
    set_files,
)
from tradewind.recipes.data.overlap.decontamination import NGRAM
from tradewind.recipes.data.overlap.evaluation_sets import (
    EVALUATIONS,
    Evaluation,
    EvaluationIndex,
    counting_evaluations,
    index_evaluations,
)
from tradewind.recipes.data.overlap.ngram_index import IndexHeader, NgramIndex, load_index
from tradewind.recipes.data.overlap.words import ALGORITHM, ngram_hashes, run_spans, word_hashes
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, TEXTS, FieldRule, check_fields
from tradewind.steps.needs import needs
from tradewind.text import single_line, truncated_repr

ITEMS: Final = "items"
"""Folder of what was found of each item."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MAX_LENGTHS: Final = 8
_LENGTHS: Final = FieldRule(
    f"a list of 1 to {_MAX_LENGTHS} different whole numbers from 1 to 1,000",
    lambda value: (
        isinstance(value, (list, tuple))
        and 0 < len(value) <= _MAX_LENGTHS
        and all(map(NGRAM.fits, value))
        and len(set(value)) == len(value)
    ),
)


@dataclass(frozen=True)
class OverlapConfig:
    """What ``train_test_overlap`` compares."""

    training_sets: Sequence[str]
    """Sets of documents."""
    names: Sequence[str]
    """Their names."""
    output_path: str
    """Gets the attributes in a folder for each training set, ``items/``, ``stats.json`` and ``overlap.md``."""
    evaluations: Sequence[Evaluation]
    """Sets whose items are looked for."""
    ngram_lengths: Sequence[int]
    """Words of a run, for each comparison."""
    algorithm: int = ALGORITHM

    def __post_init__(self) -> None:
        for each in self.training_sets:
            PATH.check("training_sets", each)
        check_fields(self, names=TEXTS, output_path=PATH, evaluations=EVALUATIONS, ngram_lengths=_LENGTHS)


@naming_step
def train_test_overlap(
    name: str,
    training_sets: Mapping[str, Any],
    evaluation_sets: Sequence[Evaluation],
    *,
    ngram_lengths: Sequence[int] = (5, 8, 13),
    **options: Any,
) -> ExecutorStep:
    """Return a step that tells how many items of each evaluation set occur in each training set.

    Args:
        name: Name of the step.
        training_sets: Sets of documents by their names: steps or folders.
        evaluation_sets: The evaluation sets; all fields of these count in the version.
        ngram_lengths: Words of a run, for each comparison.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    config = OverlapConfig(
        _paths(training_sets),
        versioned_value(list(training_sets)),
        this_output_path(),
        counting_evaluations("evaluation_sets", evaluation_sets),
        versioned_value(list(ngram_lengths) if isinstance(ngram_lengths, tuple) else ngram_lengths),
        versioned_value(ALGORITHM),
    )
    about = {"description": f"Overlap of {len(training_sets)} training and {len(evaluation_sets)} evaluation sets."}
    return dataset_step(name, find_overlap, config, finish=write_overlap, **(about | options))


def _paths(training_sets: Any) -> list[Any]:
    if not isinstance(training_sets, Mapping) or not training_sets:
        raise ValueError(f"training_sets={truncated_repr(training_sets)}: give a dict of names and sets of documents.")
    for name in training_sets:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == ITEMS:
            raise ValueError(
                f"training_sets: a set has the name {truncated_repr(name)}: give letters, digits, '_' and '-', at most "
                f"100, and not {ITEMS!r}."
            )
    return [path_input(f"training_sets[{name!r}]", each) for name, each in training_sets.items()]


@needs("numpy", "pyarrow", extra="data")
def find_overlap(config: OverlapConfig) -> Dataset[Any]:
    """Return the pipeline of ``train_test_overlap``."""
    folders = zip(config.names, config.training_sets, strict=True)
    sets = [set_files(folder, f"training_sets[{name!r}]") for name, folder in folders]
    index = _index(config)
    headers = tuple(index.headers.values())
    sizes = tuple(zip(config.names, map(len, sets), strict=True))
    documents = dataset_of([file for files in sets for file in files]).load_parquet(("id", "text"))
    marked = documents.map_shard(_Checking(sizes)).map_shard(_Marking(headers))
    written = marked.write_parquet(_OutputNames(config.output_path, sizes), _attribute_schema(config.ngram_lengths))
    seen = written.load_parquet([_runs(length) for length in config.ngram_lengths]).map_shard(_Seen(sizes, headers))
    items = seen.group_by(
        itemgetter("set"), reducer=_PerItem(tuple(config.names), headers, index.items), num_output_shards=1
    )
    return items.write_parquet(part_pattern(join(config.output_path, ITEMS), ".parquet"), _item_schema(headers))


def _index(config: OverlapConfig) -> EvaluationIndex:
    return index_evaluations(config.evaluations, "evaluation_sets", config.ngram_lengths, config.output_path)


def _runs(length: int) -> str:
    return f"runs_{length}"


def _attribute_schema(lengths: Sequence[int]) -> Any:
    import pyarrow as pa

    spans = {f"overlap_{length}": pa.list_(pa.list_(pa.int64())) for length in lengths}
    names = {f"evaluations_{length}": pa.list_(pa.string()) for length in lengths}
    schema = attribute_schema(**spans, **names)
    for length in lengths:
        schema = schema.append(pa.field(_runs(length), pa.list_(pa.uint32())))
    return schema


def _item_schema(headers: Sequence[IndexHeader]) -> Any:
    import pyarrow as pa

    texts = [(name, pa.string()) for name in ("training_set", "evaluation", "item", "text")]
    numbers = [(f"{kind}_{each.length}", pa.int64()) for each in headers for kind in ("ngrams", "found")]
    return pa.schema([*texts, *numbers])


@dataclass(frozen=True)
class _Checking:
    """Check that each document is at its place, and count those of each set."""

    sizes: tuple[tuple[str, int], ...]

    def __call__(self, rows: Iterator[dict[str, Any]], shard: ShardInfo) -> Iterator[dict[str, Any]]:
        number, own = _place(self.sizes, shard.shard_idx)
        name, total = self.sizes[number]
        count = 0
        for row in checked_rows(rows, ShardInfo(own, total)):
            count += 1
            yield row
        counters.increment(f"documents.{name}", count)


def _place(sizes: Sequence[tuple[str, int]], shard: int) -> tuple[int, int]:
    """Return the number of the set of a shard of all sets, and its number there."""
    for number, (_, size) in enumerate(sizes):
        if shard < size:
            return number, shard
        shard -= size
    raise AssertionError(shard)


@dataclass(frozen=True)
class _OutputNames:
    folder: str
    sizes: tuple[tuple[str, int], ...]

    def __call__(self, shard: int, _: int) -> str:
        number, own = _place(self.sizes, shard)
        name, total = self.sizes[number]
        return join(self.folder, name, f"{PART.format(shard=own, total=total)}.parquet")


@dataclass(frozen=True)
class _Marking:
    """Function of ``map_shard`` that yields what documents share with items, if they share a run of any length."""

    headers: tuple[IndexHeader, ...]

    def __call__(self, documents: Iterator[dict[str, Any]], _: ShardInfo) -> Iterator[dict[str, Any]]:
        indices = [load_index(header) for header in self.headers]
        for document in documents:
            hashes = word_hashes(document["text"])
            found = [(index, *index.find(ngram_hashes(hashes, index.length))) for index in indices]
            if any(len(places) for _, places, _ in found):
                yield {"id": document["id"], **_shared(document["text"], found)}


def _shared(text: str, found: Sequence[tuple[NgramIndex, Any, Any]]) -> dict[str, Any]:
    import numpy as np

    attributes: dict[str, Any] = {}
    runs_of: dict[str, Any] = {}
    for index, places, runs in found:
        different = np.unique(runs)
        items, _ = index.items_of(different)
        owners = np.unique(index.evaluation_of(items)).tolist()
        attributes[f"overlap_{index.length}"] = run_spans(text, places, index.length)
        attributes[f"evaluations_{index.length}"] = [index.evaluation_name(owner) for owner in owners]
        runs_of[_runs(index.length)] = different.tolist()
    return {"attributes": attributes, **runs_of}


@dataclass(frozen=True)
class _Seen:
    """Function of ``map_shard`` that yields one row: the runs that a shard has of each index, as bits."""

    sizes: tuple[tuple[str, int], ...]
    headers: tuple[IndexHeader, ...]

    def __call__(self, rows: Iterator[dict[str, Any]], shard: ShardInfo) -> Iterator[dict[str, Any]]:
        import numpy as np

        seen = [np.zeros(header.sizes["hashes"], bool) for header in self.headers]
        for row in rows:
            for bits, header in zip(seen, self.headers, strict=True):
                bits[row[_runs(header.length)]] = True
        packed = [zlib.compress(np.packbits(bits).tobytes(), 1) for bits in seen]
        yield {"set": _place(self.sizes, shard.shard_idx)[0], "seen": packed}


@dataclass(frozen=True)
class _PerItem:
    """Reducer that yields for each item how many of its runs a training set has."""

    names: tuple[str, ...]
    headers: tuple[IndexHeader, ...]
    items: tuple[InputFile, ...]

    def __call__(self, number: int, shards: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        import numpy as np

        seen = [np.zeros(-(-header.sizes["hashes"] // 8), np.uint8) for header in self.headers]
        for shard in shards:
            for bits, packed in zip(seen, shard["seen"], strict=True):
                bits |= np.frombuffer(zlib.decompress(packed), np.uint8)
        columns = {}
        for bits, header in zip(seen, self.headers, strict=True):
            index = load_index(header)
            runs = np.flatnonzero(np.unpackbits(bits, count=header.sizes["hashes"]))
            columns[f"ngrams_{header.length}"] = index.totals
            columns[f"found_{header.length}"] = _found_per_item(index, runs)
        for at, item in enumerate(self._items()):
            numbers = {name: int(column[at]) for name, column in columns.items()}
            yield {"training_set": self.names[number], **item, **numbers}

    def _items(self) -> Iterator[dict[str, Any]]:
        names = [each.name for each in self.headers[0].evaluations]
        for file in self.items:
            for row in load_parquet(file.path, columns=["evaluation", "item", "text"]):
                yield {**row, "evaluation": names[row["evaluation"]]}


def _found_per_item(index: NgramIndex, runs: Any) -> Any:
    import numpy as np

    items, _ = index.items_of(runs)
    return np.bincount(items, minlength=len(index.totals))


def write_overlap(config: OverlapConfig, results: Results) -> None:
    """Write how many items overlap, for programs and for users."""
    files = set_files(join(config.output_path, ITEMS), "output_path")
    sums = flow_backend().execute(
        dataset_of(files).load_parquet().reduce(_Summing(tuple(config.ngram_lengths)), _sum_of_all)
    )[0]
    documents = {name: results.counters.get(f"documents.{name}", 0) for name in config.names}
    overlaps = [
        _overlap(sums, name, evaluation.name, length)
        for length in config.ngram_lengths
        for evaluation in config.evaluations
        for name in config.names
    ]
    write_json(join(config.output_path, "stats.json"), {"documents": documents, "overlaps": overlaps})
    write_text(join(config.output_path, "overlap.md"), _as_markdown(config, documents, overlaps))


@dataclass(frozen=True)
class _Summing:
    """Count the items of each training set, evaluation set and length, by what was found of them."""

    lengths: tuple[int, ...]

    def __call__(self, rows: Iterator[dict[str, Any]]) -> Counter[tuple[str, str, int, str]]:
        sums: Counter[tuple[str, str, int, str]] = Counter()
        for row in rows:
            for length in self.lengths:
                key = (row["training_set"], row["evaluation"], length)
                ngrams, found = row[f"ngrams_{length}"], row[f"found_{length}"]
                sums[*key, "items"] += 1
                sums[*key, "with_ngrams"] += ngrams > 0
                sums[*key, "overlapping"] += found > 0
                sums[*key, "whole"] += 0 < ngrams == found
        return sums


def _sum_of_all(shards: Iterator[Counter[Any]]) -> Counter[Any]:
    return sum(shards, Counter())


def _overlap(sums: Mapping[Any, int], name: str, evaluation: str, length: int) -> dict[str, Any]:
    counts = {
        kind: sums.get((name, evaluation, length, kind), 0) for kind in ("items", "with_ngrams", "overlapping", "whole")
    }
    about = {"training_set": name, "evaluation": evaluation, "ngram": length}
    return {**about, **counts, "fraction": counts["overlapping"] / counts["items"]}


def _as_markdown(config: OverlapConfig, documents: Mapping[str, int], overlaps: Sequence[Mapping[str, Any]]) -> str:
    """Return a table for each length, with evaluation sets as rows and training sets as columns."""
    lines = ["# Overlap of evaluation and training sets", ""]
    lines += [f"- `{name}`: {count:,} documents" for name, count in documents.items()]
    for length in config.ngram_lengths:
        lines += ["", f"## Items that share {length} words in a row with a document", ""]
        lines += [_row(["evaluation", "items", f"of {length} words or more", *config.names])]
        lines += [_row(["---", *["--:"] * (2 + len(config.names))])]
        for evaluation in config.evaluations:
            own = [each for each in overlaps if each["ngram"] == length and each["evaluation"] == evaluation.name]
            cells = [f"{each['overlapping']:,} ({each['fraction']:.1%})" for each in own]
            name = single_line(evaluation.name).replace("|", "\\|")
            lines.append(_row([name, f"{own[0]['items']:,}", f"{own[0]['with_ngrams']:,}", *cells]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
