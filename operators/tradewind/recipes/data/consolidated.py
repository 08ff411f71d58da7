"""Join documents with their attributes, and keep those, and of those the text, that rules of Marin's form leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any, Final

from tradewind.datasets import Dataset, counters, dataset_step
from tradewind.datasets.execution import SCRATCH_FOLDER, Results
from tradewind.datasets.files import join, write_json
from tradewind.datasets.rows import RowError
from tradewind.datasets.token_inputs import InputFile
from tradewind.recipes.data.document_sets import (
    Counted,
    document_schema,
    documents_of,
    part_pattern,
    path_input,
    read_set,
    set_files,
)
from tradewind.recipes.data.thresholds import find_threshold
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, FieldRule, check_fields, number, one_of
from tradewind.steps.needs import needs
from tradewind.steps.placeholders import VersionedValue
from tradewind.text import quote_first_names, truncated_repr

CLASSIFY: Final = "classify"
REMOVE_SPANS: Final = "remove_spans"
REMOVE_DOC: Final = "remove_doc"
_BOUNDS: Final = ("threshold", "keep_fraction", "upper_threshold")
_FILTERS: Final = FieldRule(
    "a list of FilterConfig",
    lambda value: (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, FilterConfig) for each in value)
    ),
)


@dataclass(frozen=True)
class FilterConfig:
    """A rule: which attribute decides what of a document remains.

    ``classify`` keeps a document by its score, ``remove_doc`` removes one whose attribute is true, and ``remove_spans``
    removes the spans of the text that the attribute lists.
    """

    type: str
    """``classify``, ``remove_doc`` or ``remove_spans``."""
    attribute_path: str
    """A set of attributes, partitioned like the documents."""
    name: str
    """Name of the attribute."""
    label: str | None = None
    """For ``classify``: key within the attribute; None if the attribute is the score."""
    threshold: float | None = None
    """For ``classify``: keep documents with at least this score."""
    keep_fraction: float | None = None
    """For ``classify``, instead of ``threshold``: keep this share of the scored documents, those with the best scores;
    equal scores are kept together."""
    upper_threshold: float | None = None
    """For ``classify``: keep documents with at most this score."""
    keep_if_missing: bool = False
    """For ``classify``: keep documents without a score."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            type=one_of((CLASSIFY, REMOVE_DOC, REMOVE_SPANS)),
            attribute_path=PATH,
            name=SOME_TEXT,
            label=SOME_TEXT.or_none(),
            threshold=number().or_none(),
            keep_fraction=number(above=0, below=1).or_none(),
            upper_threshold=number().or_none(),
            keep_if_missing=FLAG,
        )
        given = [name for name in ("label", *_BOUNDS) if _unversioned(getattr(self, name)) is not None]
        kind = _unversioned(self.type)
        if kind in (REMOVE_DOC, REMOVE_SPANS) and given:
            raise ValueError(f"{given[0]}={truncated_repr(getattr(self, given[0]))}: type={kind!r} has none.")
        if "threshold" in given and "keep_fraction" in given:
            raise ValueError("threshold and keep_fraction are both given: give one of them.")
        if kind == CLASSIFY and not set(given) & set(_BOUNDS):
            raise ValueError(f"type={kind!r} has no bound: give one of {', '.join(_BOUNDS)}.")

    def score(self, attributes: Any) -> float | None:
        """Return the score of a document; None without one."""
        value = self.value(attributes)
        if value is not None and self.label is not None:
            if not isinstance(value, dict):
                raise RowError(f"The attribute {self.name!r} is {truncated_repr(value)}, which has no labels.")
            if self.label not in value:
                raise RowError(f"{self.name!r} has no label {self.label!r}: there are {quote_first_names(value)}.")
            value = value[self.label]
        if value is None:
            return None
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RowError(f"The attribute {self.name!r} is {truncated_repr(value)}: a score is a finite number.")
        return float(value)

    def value(self, attributes: Any) -> Any:
        """Return the attribute of a document; None without one."""
        if attributes is None:
            return None
        if not isinstance(attributes, dict):
            raise RowError(f"The attributes are {truncated_repr(attributes)}: give an object with their names.")
        if self.name not in attributes:
            raise RowError(f"There is no attribute {self.name!r}: there are {quote_first_names(attributes)}.")
        return attributes[self.name]


@dataclass(frozen=True)
class ConsolidateConfig:
    """What ``consolidate`` joins."""

    documents: str
    """A set of documents."""
    output_path: str
    """Gets the documents that remain, and ``stats.json``."""
    filters: Sequence[FilterConfig]
    """Rules, applied in this order."""

    def __post_init__(self) -> None:
        check_fields(self, documents=PATH, output_path=PATH, filters=_FILTERS)


@naming_step
def consolidate(name: str, documents: Any, filters: Sequence[FilterConfig], **options: Any) -> ExecutorStep:
    """Return a step that keeps the documents, and of their texts the parts, that all filters leave.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder.
        filters: Rules about attributes of these documents; everything in them counts in the version.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    _FILTERS.check("filters", filters)
    config = ConsolidateConfig(path_input("documents", documents), this_output_path(), [*map(_counting, filters)])
    about = {"description": f"Documents that {len(filters)} rules about their attributes leave."}
    return dataset_step(name, consolidated, config, finish=write_stats, **(about | options))


@needs("pyarrow", "zstandard", extra="data")
def consolidated(config: ConsolidateConfig) -> Dataset[Any]:
    """Return the pipeline of ``consolidate``."""
    files = set_files(config.documents, "documents")
    rows: Dataset[Any] = documents_of(files).map_shard(Counted("read"))
    listed = zip(_keys(config.filters), _attributes(config, files), _thresholds(config, files), strict=True)
    for key, (rule, attributes), bound in listed:
        right = read_set(attributes, ("id", "attributes")).map_shard(Counted(f"of_{key}"))
        by_id = itemgetter("id")
        rows = rows.sorted_merge_join(right, by_id, by_id, _Applying(key, rule, bound), how="left")
    kept = rows.flat_map(_remaining).map_shard(Counted("documents"))
    return kept.write_parquet(part_pattern(config.output_path, ".parquet"), document_schema())


def write_stats(config: ConsolidateConfig, results: Results) -> None:
    """Write how many documents each rule removed, and the thresholds.

    Raises:
        ValueError: No document is left.
    """
    counts = {"read": 0, "documents": 0, **results.counters, "rejected": results.rejected}
    if not counts["documents"]:
        raise ValueError(f"filters: of {counts['read']:,} documents none is left.")
    for at, (key, rule) in enumerate(zip(_keys(config.filters), config.filters, strict=True)):
        if counts.pop(f"of_{key}", 0) and not counts.pop(f"with_{key}", 0):
            raise ValueError(
                f"filters[{at}]: none of the documents of {config.documents} has attributes in {rule.attribute_path}: "
                "give attributes that were made of these documents."
            )
    bounds = _thresholds(config, set_files(config.documents, "documents"))
    rules = [
        {"type": rule.type, "name": rule.name, "label": rule.label, "threshold": bound}
        for rule, bound in zip(config.filters, bounds, strict=True)
    ]
    write_json(join(config.output_path, "stats.json"), {"counts": counts, "filters": rules})


def _keys(filters: Sequence[FilterConfig]) -> list[str]:
    """Return for each rule the end of its counters' names: its attribute, and its number if several have that one."""
    names = [rule.name for rule in filters]
    return [name if names.count(name) == 1 else f"{name}_{at}" for at, name in enumerate(names)]


def _counting(rule: FilterConfig) -> FilterConfig:
    names = [field.name for field in fields(rule) if field.name != "attribute_path"]
    counted = {name: versioned_value(getattr(rule, name)) for name in names}
    return replace(rule, attribute_path=path_input("attribute_path", rule.attribute_path), **counted)


def _unversioned(value: Any) -> Any:
    return value.value if isinstance(value, VersionedValue) else value


def _attributes(
    config: ConsolidateConfig, documents: Sequence[InputFile]
) -> list[tuple[FilterConfig, list[InputFile]]]:
    """List the attributes of each rule.

    Raises:
        ValueError: Attributes are not partitioned like the documents.
    """
    listed = []
    for at, rule in enumerate(config.filters):
        field = f"filters[{at}].attribute_path"
        files = set_files(rule.attribute_path, field)
        if len(files) != len(documents):
            raise ValueError(
                f"{field}: {rule.attribute_path} has {len(files):,} shards and {config.documents} has "
                f"{len(documents):,}: give attributes that were made of these documents."
            )
        listed.append((rule, files))
    return listed


def _thresholds(config: ConsolidateConfig, documents: Sequence[InputFile]) -> list[float | None]:
    """Return the lower bound of each rule's score; those of fractions are found once, and then kept."""
    bounds = []
    for at, (rule, files) in enumerate(_attributes(config, documents)):
        bound = rule.threshold
        if rule.keep_fraction is not None:
            scores = read_set(files, ("id", "attributes")).flat_map(_Scoring(rule))
            folder = join(config.output_path, SCRATCH_FOLDER, "thresholds", f"filter-{at}")
            bound = find_threshold(scores, rule.keep_fraction, folder)
            if bound is None:
                raise ValueError(f"filters[{at}]: {rule.attribute_path} has no scores named {rule.name!r}.")
        bounds.append(bound)
    return bounds


@dataclass(frozen=True)
class _Scoring:
    rule: FilterConfig

    def __call__(self, row: dict[str, Any]) -> list[float]:
        score = self.rule.score(row["attributes"])
        return [] if score is None else [score]


@dataclass(frozen=True)
class _Applying:
    """Return the document as a rule leaves it; of one that is removed only the id, as later rules look for it."""

    key: str
    rule: FilterConfig
    bound: float | None

    def __call__(self, document: dict[str, Any], row: dict[str, Any] | None) -> dict[str, Any]:
        attributes = None if row is None else row["attributes"]
        if row is not None:
            counters.increment(f"with_{self.key}")
        if "text" not in document:
            return document
        if self.rule.type == REMOVE_SPANS:
            spans = self.rule.value(attributes) or []
            if not isinstance(spans, list):
                raise RowError(f"The attribute {self.rule.name!r} is {truncated_repr(spans)}: give a list of spans.")
            valid = [_span(span, document["text"]) for span in spans]
            return {**document, "spans": [*document.get("spans", ()), *valid]}
        if self._keeps(attributes):
            return document
        counters.increment(f"removed_by_{self.key}")
        return {"id": document["id"]}

    def _keeps(self, attributes: Any) -> bool:
        if self.rule.type == REMOVE_DOC:
            return not self.rule.value(attributes)
        score = self.rule.score(attributes)
        if score is None:
            return self.rule.keep_if_missing
        upper = self.rule.upper_threshold
        return (self.bound is None or score >= self.bound) and (upper is None or score <= upper)


def _span(span: Any, text: str) -> tuple[int, int]:
    """Return begin and end; Dolma's spans have a score as well."""
    try:
        start, end = int(span[0]), int(span[1])
    except (TypeError, ValueError, IndexError):
        raise RowError(f"A span is {truncated_repr(span)}: give begin and end.") from None
    if not 0 <= start <= end <= len(text):
        raise RowError(f"A span is {truncated_repr(span)}, and the text has {len(text):,} characters.")
    return start, end


def _remaining(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Remove the spans of all rules, which refer to the original text; leave out a document that is then blank."""
    if "text" not in document:
        return []
    spans = document.pop("spans", None)
    if not spans:
        return [document]
    text, at, kept = document["text"], 0, []
    for start, end in sorted(spans):
        kept.append(text[at : max(at, start)])
        at = max(at, end)
    left = "".join([*kept, text[at:]]).strip("\n")
    if not left.strip():
        counters.increment("removed_as_blank")
        return []
    return [{**document, "text": left}]
