"""Score documents by a classifier: attributes for ``consolidate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, dataset_step
from tradewind.recipes.data.classifier_models import Classifier, classifier_at
from tradewind.recipes.data.document_sets import attribute_schema, part_pattern, path_input, read_set, set_files
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, SOME_TEXT, check_fields

ALGORITHM: Final = 1
"""Changes with the scores of the same texts and model; part of the version."""
_MAX_ROWS: Final = 500
_MAX_CHARS: Final = 1 << 20
_Row = dict[str, Any]


@dataclass(frozen=True)
class ScoreDocumentsConfig:
    """What ``score_documents`` reads."""

    documents: str
    """A set of documents."""
    classifier: str
    """The output of ``train_classifier``, or a model of fastText."""
    output_path: str
    """Gets the attributes."""
    attribute: str = "quality"
    """Name of the attribute, an object with the score of each label."""
    algorithm: int = ALGORITHM
    """Of this package."""

    def __post_init__(self) -> None:
        check_fields(self, documents=PATH, classifier=PATH, output_path=PATH, attribute=SOME_TEXT)


@naming_step
def score_documents(
    name: str, documents: Any, classifier: Any, *, attribute: str = "quality", **options: Any
) -> ExecutorStep:
    """Return a step that scores each document of a set by a classifier.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder.
        classifier: A step of ``train_classifier``, its folder, or a file of fastText.
        attribute: Name of the attribute: ``{"id": ..., "attributes": {attribute: {label: score}}}``.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    config = ScoreDocumentsConfig(
        path_input("documents", documents),
        path_input("classifier", classifier),
        this_output_path(),
        versioned_value(attribute),
        versioned_value(ALGORITHM),
    )
    return dataset_step(name, scored, config, **({"description": f"Scores ({attribute}) of documents."} | options))


def scored(config: ScoreDocumentsConfig) -> Dataset[Any]:
    """Return the pipeline of ``score_documents``."""
    files = set_files(config.documents, "documents")
    classifier = classifier_at(config.classifier, "classifier").checked()
    rows = read_set(files, ("id", "text")).map_shard(_Scoring(classifier, config.attribute))
    return rows.write_parquet(part_pattern(config.output_path, ".parquet"), _schema(classifier, config.attribute))


scored.needs = ("fasttext", "pyarrow", "sklearn")  # type: ignore[attr-defined]  # checked before its step starts
scored.extra = "quality"  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Scoring:
    """Function of ``map_shard`` that loads the model once and scores all rows."""

    classifier: Classifier
    attribute: str

    def __call__(self, rows: Iterator[_Row], _: ShardInfo) -> Iterator[_Row]:
        with self.classifier.loaded() as model:
            yield from scored_rows(rows, model.scores, self.attribute)


def scored_rows(rows: Iterator[_Row], score: Callable[[list[str]], list[Any]], attribute: str) -> Iterator[_Row]:
    """Yield the attribute of each row, scored in batches."""
    for batch in _batches(rows):
        for row, scores in zip(batch, score([row["text"] for row in batch]), strict=True):
            yield {"id": row["id"], "attributes": {attribute: scores}}


def _batches(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    batch: list[_Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row["text"])
        if len(batch) == _MAX_ROWS or size > _MAX_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _schema(classifier: Classifier, attribute: str) -> Any:
    import pyarrow as pa

    labels = classifier.labels
    return attribute_schema(**{attribute: pa.struct([(label, pa.float64()) for label in labels])})
