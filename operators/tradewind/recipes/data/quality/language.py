"""Identify the language of documents with a model of fastText: attributes for ``consolidate``.

languages = identify_language("languages", pages, "gs://bucket/lid.176.ftz", languages=["en", "de"])
kept = consolidate("kept", pages, [FilterConfig("remove_doc", languages, "other_language")])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, counters, dataset_step
from tradewind.recipes.data.document_sets import attribute_schema, part_pattern, path_input, read_set, set_files
from tradewind.recipes.data.quality.classifier_models import FASTTEXT, Classifier, classifier_at, local_copy
from tradewind.recipes.data.quality.fasttext_models import FastTextModel
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, TEXTS, check_fields, number
from tradewind.steps.needs import needs
from tradewind.text import did_you_mean, truncated_repr

LANGUAGE: Final = "language"
"""Attribute of each document: its ``label`` and ``score``; null without a word that the model knows."""
OTHER_LANGUAGE: Final = "other_language"
"""Attribute of each document: whether it is in none of the wanted languages."""
ALGORITHM: Final = 1
"""Changes with the attributes of the same texts and model; part of the version."""


@dataclass(frozen=True)
class IdentifyLanguageConfig:
    """What ``identify_language`` reads."""

    documents: str
    """A set of documents."""
    model: str
    """A model of fastText."""
    output_path: str
    """Gets the attributes."""
    languages: Sequence[str] = ()
    """Labels of the wanted languages."""
    threshold: float = 0.65
    """Score from which a document is in a wanted language."""
    algorithm: int = ALGORITHM
    """Of this package."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            documents=PATH,
            model=PATH,
            output_path=PATH,
            languages=TEXTS,
            threshold=number(minimum=0),
        )


@naming_step
def identify_language(
    name: str,
    documents: Any,
    model: Any,
    *,
    languages: Sequence[str] = (),
    threshold: float = 0.65,
    **options: Any,
) -> ExecutorStep:
    """Return a step that finds the most probable language of each document of a set.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder.
        model: A file of fastText, such as ``lid.176.ftz``, or a folder with one.
        languages: Labels of the model, such as ``["en", "de"]``, for the attribute ``other_language``: true if the
            document is in none of these.
        threshold: A document is in a language if that is the most probable one, with at least this score.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    config = IdentifyLanguageConfig(
        path_input("documents", documents),
        path_input("model", model),
        this_output_path(),
        versioned_value(languages),
        versioned_value(threshold),
        versioned_value(ALGORITHM),
    )
    return dataset_step(name, identified, config, **({"description": "Languages of documents."} | options))


@needs("fasttext", "pyarrow", extra="quality")
def identified(config: IdentifyLanguageConfig) -> Dataset[Any]:
    """Return the pipeline of ``identify_language``."""
    files = set_files(config.documents, "documents")
    model = classifier_at(config.model, "model")
    if model.kind != FASTTEXT:
        raise ValueError(f"model: {config.model} is a classifier of kind {model.kind}: give a model of fastText.")
    model = model.checked()
    for language in config.languages:
        if language not in model.labels:
            raise ValueError(f"languages has {truncated_repr(language)}: {did_you_mean(language, model.labels)}")
    identify = _Identifying(model, frozenset(config.languages), config.threshold)
    rows = read_set(files, ("id", "text")).map_shard(identify)
    return rows.write_parquet(part_pattern(config.output_path, ".parquet"), _schema(bool(config.languages)))


@dataclass(frozen=True)
class _Identifying:
    """Function of ``map_shard`` that loads the model once and identifies the language of all rows."""

    model: Classifier
    languages: frozenset[str]
    threshold: float

    def __call__(self, rows: Iterator[dict[str, Any]], _: ShardInfo) -> Iterator[dict[str, Any]]:
        with local_copy(self.model.file) as file:
            model = FastTextModel(file, self.model.labels)
            for row in rows:
                found = next(iter(model.best(row["text"]).items()), None)
                counters.increment(f"language.{found[0] if found else 'unknown'}")
                yield {"id": row["id"], "attributes": self._attributes(found)}

    def _attributes(self, found: tuple[str, float] | None) -> dict[str, Any]:
        language = None if found is None else {"label": found[0], "score": found[1]}
        if not self.languages:
            return {LANGUAGE: language}
        is_wanted = found is not None and found[0] in self.languages and found[1] >= self.threshold
        return {LANGUAGE: language, OTHER_LANGUAGE: not is_wanted}


def _schema(has_wanted: bool) -> Any:
    import pyarrow as pa

    language = pa.struct([("label", pa.string()), ("score", pa.float64())])
    other = {OTHER_LANGUAGE: pa.bool_()} if has_wanted else {}
    return attribute_schema(**{LANGUAGE: language}, **other)
