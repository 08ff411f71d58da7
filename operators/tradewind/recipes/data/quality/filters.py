"""A step that keeps the documents that satisfy rules on the quality of their texts, or writes their measures.

    filter_documents("good", pages, [C4(terminal_punctuation=False), GopherQuality(), FineWeb(), MaskPii()])

Each output file has the name of the input file. Rules apply in their order, each to the text as the one before left it;
the step counts each rejected document by the first measure out of its bounds, as ``rejected.gopher_quality.words``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Any, Final

from tradewind.datasets import Dataset, counters, dataset_step
from tradewind.datasets.dataset import FilesSource
from tradewind.datasets.execution import list_source
from tradewind.datasets.files import basename, join
from tradewind.datasets.rows import RowError, selected
from tradewind.datasets.token_inputs import InputFile, input_files
from tradewind.recipes.data.document_sets import attribute_schema, dataset_of, path_input, set_files
from tradewind.recipes.data.quality.filter_rules import (
    C4,
    FineWeb,
    GopherQuality,
    GopherRepetition,
    Length,
    Rule,
    rule_of,
)
from tradewind.recipes.data.quality.pii import MaskPii
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path, versioned
from tradewind.steps.fields import FLAG, PATH, check_fields
from tradewind.steps.needs import needs
from tradewind.storage import open_file
from tradewind.text import truncated_repr

RULES: Final[Mapping[str, type[Rule]]] = {
    rule.name: rule for rule in (GopherQuality, GopherRepetition, C4, FineWeb, Length, MaskPii)
}
KEPT: Final = "kept"
_Row = dict[str, Any]


@dataclass(frozen=True)
class FilterDocumentsConfig:
    """What ``filter_documents`` reads, and by which rules."""

    documents: str
    """A file, folder or glob of JSON lines or Parquet, with the columns ``id`` and ``text``."""
    output_path: str
    """Gets a file for each input file."""
    rules: Sequence[Mapping[str, Any]]
    """Names (``rule``) and all thresholds."""
    keep_attributes: bool
    """Write the measures of all documents in place of the documents that satisfy the rules."""

    def __post_init__(self) -> None:
        check_fields(self, documents=PATH, output_path=PATH, keep_attributes=FLAG)


@naming_step
def filter_documents(
    name: str, documents: Any, rules: Sequence[Any], *, keep_attributes: bool = False, **options: Any
) -> ExecutorStep:
    """Return a step that filters documents; all thresholds count in its version.

    Args:
        name: Name of the step.
        documents: A step, or a path of JSON lines or Parquet files.
        rules: Rules such as ``GopherQuality(min_words=20)``, or their names and options as
            ``{"rule": "gopher_quality", "min_words": 20}``.
        keep_attributes: Write ``{"id", "attributes": {rule: {measure: number}}}`` for every document, and no text.
        options: Of ``dataset_step``, such as ``max_parallelism`` and ``on_error``.

    Raises:
        ValueError: A rule or an option of one does not exist, a rule occurs twice, or there are none.
    """
    checked = _rules(rules)
    counted = [{"rule": rule.name, **vars(rule)} for rule in checked]
    config = FilterDocumentsConfig(
        path_input("documents", documents), this_output_path(), versioned(counted), versioned(keep_attributes)
    )
    names = ", ".join(rule.name for rule in checked)
    about = f"{'Measures of' if keep_attributes else 'Those'} documents by the rules {names}."
    return dataset_step(name, filtered_documents, config, **{"description": about, **options})


@needs("pyarrow", "zstandard", extra="data")
def filtered_documents(config: FilterDocumentsConfig) -> Dataset[str]:
    """Return the pipeline of ``filter_documents``."""
    files = document_files(config.documents, "documents")
    rules = _rules(config.rules)
    rows = dataset_of(files).load_file()
    output = _OutputNames(config.output_path, tuple(_names(files)))
    is_parquet = {file.path.endswith(".parquet") for file in files}
    if len(is_parquet) > 1:
        raise ValueError(f"documents: {config.documents} holds JSON lines and Parquet: give a glob of one kind.")
    result = rows.map(_Attributes(rules)) if config.keep_attributes else rows.flat_map(_Filter(rules))
    if not is_parquet.pop():
        return result.write_jsonl(output)
    schema = _attribute_schema(rules) if config.keep_attributes else _schema(files)
    return result.write_parquet(output, schema)


@dataclass(frozen=True)
class _Filter:
    """Yield a document, as the rules left it, if it satisfies all."""

    rules: tuple[Rule, ...]

    def __call__(self, row: _Row) -> Iterator[_Row]:
        given = text = _text(row)
        for rule in self.rules:
            text, counts, _, failed = rule.apply(text)
            for name, count in counts.items():
                if count:
                    counters.increment(f"{rule.name}.{name}", count)
            if failed is not None:
                counters.increment(f"rejected.{rule.name}.{failed}")
                return
        counters.increment(KEPT)
        yield row if text is given else {**row, "text": text}


@dataclass(frozen=True)
class _Attributes:
    """Return the measures of a document by all rules."""

    rules: tuple[Rule, ...]

    def __call__(self, row: _Row) -> _Row:
        text = _text(row)
        own = selected(row, ("id",))["id"]
        if not isinstance(own, str):
            raise RowError(f"The id is {truncated_repr(own)}: ids are texts.")
        attributes: dict[str, dict[str, float]] = {}
        for rule in self.rules:
            text, counts, measures, _ = rule.apply(text, measure_all=True)
            attributes[rule.name] = {**counts, **measures}
        return {"id": own, "attributes": attributes}


@dataclass(frozen=True)
class _OutputNames:
    folder: str
    names: tuple[str, ...]

    def __call__(self, shard: int, _: int) -> str:
        return join(self.folder, self.names[shard])


def _text(row: _Row) -> str:
    text = selected(row, ("text",))["text"]
    if not isinstance(text, str):
        raise RowError(f"The text is {truncated_repr(text)}: give documents whose text is a text.")
    return text


def _rules(given: Any) -> tuple[Rule, ...]:
    if not isinstance(given, (list, tuple)) or not given:
        raise ValueError(f"rules={truncated_repr(given)}: give a list of rules: there are {', '.join(RULES)}.")
    rules = tuple(rule_of(rule, RULES) for rule in given)
    names = [rule.name for rule in rules]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"rules has {twice[0]} twice: give it once.")
    return rules


def document_files(documents: str, field: str) -> Sequence[InputFile]:
    """List the parts of a set, beside which may be statistics, or else all files."""
    parts = list_source(FilesSource(join(escape(documents), "part-*.parquet"), empty_glob_ok=True))
    if any("-of-" in basename(file.path) for file in parts):
        return set_files(documents, field)
    return parts or input_files([documents], field)


def _names(files: Sequence[InputFile]) -> Iterator[str]:
    """Yield the paths of files below the folder that all share, as they are written."""
    shared = os.path.commonprefix([file.path for file in files])
    start = shared.rfind("/") + 1
    for file in files:
        name = file.path[start:]
        yield name.removesuffix("d") if name.endswith(".zstd") else name


def _schema(files: Sequence[InputFile]) -> Any:
    """Return the schema of the first file with columns: a shard without rows may have none."""
    from pyarrow import parquet

    for file in files:
        with open_file(file.path) as opened:
            schema = parquet.read_schema(opened)
        if schema.names:
            return schema
    return None


def _attribute_schema(rules: Sequence[Rule]) -> Any:
    import pyarrow as pa

    structs = {}
    for rule in rules:
        _, counts, measures, _ = rule.apply("", measure_all=True)
        kinds = [(name, pa.int64() if isinstance(value, int) else pa.float64()) for name, value in measures.items()]
        structs[rule.name] = pa.struct([*((name, pa.int64()) for name in counts), *kinds])
    return attribute_schema(**structs)
