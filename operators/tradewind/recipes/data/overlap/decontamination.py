"""Find documents that hold items of evaluation sets: attributes for ``consolidate``.

An item is found in a document by the runs of words that both have; see ``words`` for what a word is.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, counters, dataset_step, flow_backend
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, write_json
from tradewind.recipes.data.document_sets import (
    Counted,
    attribute_schema,
    dataset_of,
    part_pattern,
    path_input,
    read_set,
    set_files,
)
from tradewind.recipes.data.overlap.evaluation_sets import (
    EVALUATIONS,
    Evaluation,
    counting_evaluations,
    headers_of,
    index_evaluations,
)
from tradewind.recipes.data.overlap.ngram_index import IndexHeader, NgramIndex, load_index
from tradewind.recipes.data.overlap.words import ALGORITHM, ngram_hashes, run_spans, word_hashes
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, FieldRule, check_fields, integer, number
from tradewind.steps.needs import needs

CONTAMINATED: Final = "contaminated"
"""Attribute of a document that holds an item: True."""
CONTAMINATED_SPANS: Final = "contaminated_spans"
"""Attribute of such a document: the spans of the runs of words that it shares with items that it holds."""
CONTAMINATED_BY: Final = "contaminated_by"
"""Attribute of such a document: the evaluation sets, and of each the item of which it holds most."""
NGRAM: Final = FieldRule("a whole number from 1 to 1,000", lambda value: integer(1).fits(value) and value <= 1_000)
SHARE: Final = FieldRule("a number from 0 to 1", lambda value: number(minimum=0).fits(value) and value <= 1)
_MAX_EXAMPLES: Final = 20
_MAX_EXCERPT: Final = 200


@dataclass(frozen=True)
class DecontaminateConfig:
    """What ``decontaminate`` compares, and how."""

    documents: str
    """A set of documents."""
    output_path: str
    """Gets the attributes, and ``stats.json``."""
    evaluations: Sequence[Evaluation]
    """Sets whose items are looked for."""
    ngram: int
    """Words of a run."""
    threshold: float
    """Share of an item's different runs from which on a document holds the item; at least one run."""
    algorithm: int = ALGORITHM

    def __post_init__(self) -> None:
        check_fields(
            self,
            documents=PATH,
            output_path=PATH,
            evaluations=EVALUATIONS,
            ngram=NGRAM,
            threshold=SHARE,
        )


@naming_step
def decontaminate(
    name: str,
    documents: Any,
    evaluations: Sequence[Evaluation],
    *,
    ngram: int = 13,
    threshold: float = 0.0,
    **options: Any,
) -> ExecutorStep:
    """Return a step that finds the documents of a set that hold items of evaluation sets.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder.
        evaluations: The evaluation sets; all fields of these count in the version.
        ngram: Words of a run. Items with fewer words cannot be found, and are counted.
        threshold: A document holds an item if it has this share of the item's different runs, and at least one.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    config = DecontaminateConfig(
        path_input("documents", documents),
        this_output_path(),
        counting_evaluations("evaluations", evaluations),
        versioned_value(ngram),
        versioned_value(threshold),
        versioned_value(ALGORITHM),
    )
    about = {"description": f"Attributes of documents that hold items of {len(evaluations)} evaluation sets."}
    return dataset_step(name, find_contaminated, config, finish=write_stats, **(about | options))


@needs("numpy", "pyarrow", extra="data")
def find_contaminated(config: DecontaminateConfig) -> Dataset[Any]:
    """Return the pipeline of ``decontaminate``."""
    files = set_files(config.documents, "documents")
    made = index_evaluations(config.evaluations, "evaluations", [config.ngram], config.output_path)
    index = made.headers[config.ngram]
    documents = read_set(files, ("id", "text")).map_shard(Counted("documents"))
    found = documents.map_shard(_Finding(index, config.threshold))
    return found.write_parquet(part_pattern(config.output_path, ".parquet"), _schema())


def write_stats(config: DecontaminateConfig, results: Results) -> None:
    """Write how many documents hold items of each set, how many items were found, and examples of both."""
    index = headers_of([config.ngram], config.output_path)[config.ngram]
    files = set_files(config.output_path, "output_path")
    found = flow_backend().execute(dataset_of(files).load_parquet(["items"]).reduce(_numbers, _all_numbers))[0]
    examples = dataset_of(files).load_parquet(["id", "attributes"]).reduce(_examples, _examples_of_all)
    per_set = _found_of_sets(index, found)
    counts = {name: results.counters.get(name, 0) for name in ("documents", CONTAMINATED, "too_short")}
    evaluations = [
        {
            **asdict(evaluation),
            "items_found": per_set[number],
            "documents": results.counters.get(f"{CONTAMINATED}.{evaluation.name}", 0),
        }
        for number, evaluation in enumerate(index.evaluations)
    ]
    about = {"ngram": config.ngram, "threshold": config.threshold, "counts": counts, "evaluations": evaluations}
    write_json(join(config.output_path, "stats.json"), about | {"examples": flow_backend().execute(examples)[0]})


def _schema() -> Any:
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in ("items", "ngrams", "of")]
    by = pa.struct([("evaluation", pa.string()), ("item", pa.string()), *numbers, ("text", pa.string())])
    attributes = attribute_schema(
        **{
            CONTAMINATED: pa.bool_(),
            CONTAMINATED_SPANS: pa.list_(pa.list_(pa.int64())),
            CONTAMINATED_BY: pa.list_(by),
        }
    )
    return attributes.append(pa.field("items", pa.list_(pa.uint32())))


@dataclass(frozen=True)
class _Finding:
    """Function of ``map_shard`` that yields the attributes of documents that hold an item.

    It gets whole shards, so that no document is left out as if it held none, whatever ``on_error`` says.
    """

    index: IndexHeader
    threshold: float

    def __call__(self, documents: Iterator[dict[str, Any]], _: ShardInfo) -> Iterator[dict[str, Any]]:
        index = load_index(self.index)
        for document in documents:
            if (found := self._found(index, document["text"])) is not None:
                yield {"id": document["id"], **found}

    def _found(self, index: NgramIndex, text: str) -> dict[str, Any] | None:
        import numpy as np

        grams = ngram_hashes(word_hashes(text), index.length)
        if not len(grams):
            counters.increment("too_short")
        places, runs = index.find(grams)
        if not len(places):
            return None
        different = np.unique(runs)
        items, counts = index.items_of(different)
        held, shared = np.unique(items, return_counts=True)
        enough = shared / index.totals[held] >= self.threshold
        held, shared = held[enough], shared[enough]
        if not len(held):
            return None
        run_of = np.repeat(different, counts)
        by = []
        for best in _best_items(index, held, shared):
            begin, end = run_spans(text, places[np.isin(runs, run_of[items == held[best.at]])], index.length)[0]
            shares = {"ngrams": int(shared[best.at]), "of": int(index.totals[held[best.at]])}
            label, part = index.label(int(held[best.at])), text[begin:end][:_MAX_EXCERPT]
            by.append({"evaluation": best.evaluation, "item": label, "items": best.items, **shares, "text": part})
            counters.increment(f"{CONTAMINATED}.{best.evaluation}")
        counters.increment(CONTAMINATED)
        spans = run_spans(text, places[np.isin(runs, run_of[np.isin(items, held)])], index.length)
        attributes = {CONTAMINATED: True, CONTAMINATED_SPANS: spans, CONTAMINATED_BY: by}
        return {"attributes": attributes, "items": held.tolist()}


@dataclass(frozen=True)
class _Best:
    """The item of an evaluation set of which a document has the largest share; ``at`` is its place among all found."""

    evaluation: str
    items: int
    at: int


def _best_items(index: NgramIndex, held: Any, shared: Any) -> Iterator[_Best]:
    import numpy as np

    owners = index.evaluation_of(held)
    for owner in np.unique(owners).tolist():
        own = np.flatnonzero(owners == owner)
        first = np.lexsort((held[own], -shared[own] / index.totals[held[own]]))[0]
        yield _Best(index.evaluation_name(owner), len(own), int(own[first]))


def _numbers(rows: Iterator[dict[str, Any]]) -> list[int]:
    return sorted({number for row in rows for number in row["items"]})


def _all_numbers(shards: Iterator[list[int]]) -> list[int]:
    return sorted(set(itertools.chain.from_iterable(shards)))


def _found_of_sets(index: IndexHeader, items: Sequence[int]) -> Counter[int]:
    found: Counter[int] = Counter()
    number, end = -1, 0
    for item in items:
        while item >= end:
            number += 1
            end += index.evaluations[number].items
        found[number] += 1
    return found


def _examples(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    held = ({"id": row["id"], **by} for row in rows for by in row["attributes"][CONTAMINATED_BY])
    return _best(held)


def _examples_of_all(shards: Iterator[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return _best(itertools.chain.from_iterable(shards))


def _best(examples: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return heapq.nsmallest(
        _MAX_EXAMPLES, examples, key=lambda each: (-each["ngrams"] / each["of"], each["id"], each["evaluation"])
    )
