"""Score documents by a classifier: attributes for ``consolidate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import isfunction
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, dataset_step
from tradewind.datasets.rows import RowError
from tradewind.recipes.data.document_sets import (
    attribute_schema,
    batches_of_texts,
    part_pattern,
    path_input,
    read_set,
    set_files,
)
from tradewind.recipes.data.quality.classifier_models import Classifier, classifier_at
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, SOME_TEXT, check_fields
from tradewind.steps.needs import needs
from tradewind.text import truncated_repr

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
    classifier: Any
    """The output of ``train_classifier``, a model of fastText, or a function."""
    output_path: str
    """Gets the attributes."""
    attribute: str = "quality"
    """Name of the attribute, an object with the score of each label."""
    algorithm: int | str = ALGORITHM
    """Of this package; of a function its name."""

    def __post_init__(self) -> None:
        check_fields(self, documents=PATH, output_path=PATH, attribute=SOME_TEXT)
        if not isfunction(self.classifier):
            PATH.check("classifier", self.classifier)


@naming_step
def score_documents(
    name: str, documents: Any, classifier: Any, *, attribute: str = "quality", **options: Any
) -> ExecutorStep:
    """Return a step that scores each document of a set by a classifier.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder.
        classifier: A step of ``train_classifier``, its folder, or a file of fastText. Or a function of a list of texts
            that returns for each a mapping of labels and scores, or a score; its name counts in the version.
        attribute: Name of the attribute: ``{"id": ..., "attributes": {attribute: {label: score}}}``.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    is_own = isfunction(classifier)
    config = ScoreDocumentsConfig(
        path_input("documents", documents),
        classifier if is_own else path_input("classifier", classifier),
        this_output_path(),
        versioned_value(attribute),
        versioned_value(f"{classifier.__module__}:{classifier.__qualname__}" if is_own else ALGORITHM),
    )
    about = {"description": f"Scores ({attribute}) of documents."}
    return dataset_step(name, scored_by_function if is_own else scored, config, **(about | options))


@needs("fasttext", "pyarrow", "sklearn", extra="quality")
def scored(config: ScoreDocumentsConfig) -> Dataset[Any]:
    """Return the pipeline of ``score_documents`` with a classifier."""
    rows = read_set(set_files(config.documents, "documents"), ("id", "text"))
    classifier = classifier_at(config.classifier, "classifier").checked()
    scores = rows.map_shard(_Scoring(classifier, config.attribute))
    return scores.write_parquet(part_pattern(config.output_path, ".parquet"), _schema(classifier, config.attribute))


@needs("pyarrow", "zstandard", extra="data")
def scored_by_function(config: ScoreDocumentsConfig) -> Dataset[Any]:
    """Return the pipeline of ``score_documents`` with a function."""
    rows = read_set(set_files(config.documents, "documents"), ("id", "text"))
    scores = rows.map_shard(_ScoringByFunction(config.classifier, config.attribute))
    return scores.write_parquet(part_pattern(config.output_path, ".parquet"))


@dataclass(frozen=True)
class _Scoring:
    """Function of ``map_shard`` that loads the model once and scores all rows."""

    classifier: Classifier
    attribute: str

    def __call__(self, rows: Iterator[_Row], _: ShardInfo) -> Iterator[_Row]:
        with self.classifier.loaded() as model:
            yield from _scored_rows(rows, model.scores, self.attribute)


@dataclass(frozen=True)
class _ScoringByFunction:
    """Function of ``map_shard`` that scores all rows by the user's function."""

    function: Callable[[list[str]], Sequence[Any]]
    attribute: str

    def __call__(self, rows: Iterator[_Row], _: ShardInfo) -> Iterator[_Row]:
        return _scored_rows(rows, self._checked, self.attribute)

    def _checked(self, texts: list[str]) -> Sequence[Any]:
        scores = self.function(texts)
        if not isinstance(scores, (list, tuple)) or len(scores) != len(texts):
            given = f"{self.function.__qualname__} returned {truncated_repr(scores)} for {len(texts):,} texts"
            raise RowError(f"{given}: return a list with the scores of each.")
        return scores


def _scored_rows(rows: Iterator[_Row], score: Callable[[list[str]], Sequence[Any]], attribute: str) -> Iterator[_Row]:
    """Yield the attribute of each row, scored in batches."""
    for batch in batches_of_texts(rows, _MAX_ROWS, _MAX_CHARS):
        for row, scores in zip(batch, score([row["text"] for row in batch]), strict=True):
            yield {"id": row["id"], "attributes": {attribute: scores}}


def _schema(classifier: Classifier, attribute: str) -> Any:
    import pyarrow as pa

    labels = classifier.labels
    return attribute_schema(**{attribute: pa.struct([(label, pa.float64()) for label in labels])})
