"""Read evaluation sets, and index the runs of words of their items, once for all shards of documents.

Each row of an evaluation set is an item; its text is that of the given columns, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tradewind.datasets import Dataset, ShardInfo, flow_backend
from tradewind.datasets.execution import SCRATCH_FOLDER
from tradewind.datasets.files import basename, join
from tradewind.datasets.rows import RowError, selected
from tradewind.datasets.token_inputs import InputFile, input_files
from tradewind.recipes.data.document_sets import dataset_of, part_pattern, path_input
from tradewind.recipes.data.overlap.ngram_index import IndexHeader, Items, pack_index, read_header
from tradewind.recipes.data.overlap.words import word_hashes
from tradewind.recipes.model_spec import versioned_value
from tradewind.steps.fields import PATH, SOME_TEXT, FieldRule, check_fields
from tradewind.steps.placeholders import VersionedValue
from tradewind.text import quote_first_names, truncated_repr

_FIELDS: Final = FieldRule(
    "a list of names of columns",
    lambda value: (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, str) and each for each in value)
    ),
)
_NAME: Final = FieldRule(
    "a name of at most 100 characters in one line",
    lambda value: isinstance(value, str) and value.isprintable() and 0 < len(value.strip()) <= len(value) <= 100,
)
_MAX_EXCERPT: Final = 200
_MAX_DEPTH: Final = 20


@dataclass(frozen=True)
class Evaluation:
    """An evaluation set: JSON lines or Parquet, and the columns that hold its texts."""

    name: str
    """Its name in attributes and statistics."""
    path: Any
    """A step, or a file, folder or glob."""
    fields: Sequence[str] = ("text",)
    """Columns of a text, or of lists or objects with texts; ``choices.text`` is a part of objects."""
    id_field: str | None = None
    """Column that names an item; None for its file and row."""

    def __post_init__(self) -> None:
        check_fields(self, name=_NAME, path=PATH, fields=_FIELDS, id_field=SOME_TEXT.or_none())


EVALUATIONS: Final = FieldRule(
    "a list of Evaluation",
    lambda value: (
        isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, Evaluation) for each in value)
    ),
)


def counting_evaluations(field: str, evaluations: Any) -> list[Evaluation]:
    """Return evaluations all of whose fields count in the version.

    Raises:
        ValueError: They are no list of evaluations, or two have one name.
    """
    EVALUATIONS.check(field, evaluations)
    names = [each.name for each in evaluations]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{field} has the name {truncated_repr(twice[0])} twice: give each evaluation its own.")
    return [
        replace(
            each,
            name=versioned_value(each.name),
            path=path_input(f"{field}[{at}].path", each.path),
            fields=versioned_value(list(each.fields)) if not isinstance(each.fields, VersionedValue) else each.fields,
            id_field=versioned_value(each.id_field),
        )
        for at, each in enumerate(evaluations)
    ]


@dataclass(frozen=True)
class EvaluationIndex:
    """The evaluation sets of a step, and one index for each length of the runs of words."""

    items: tuple[InputFile, ...]
    """Parquet with a row for each item, in their order: see ``item_schema``."""
    headers: Mapping[int, IndexHeader]
    """Length → what the head of its index says."""


def index_evaluations(
    evaluations: Sequence[Evaluation], field: str, lengths: Sequence[int], output_path: str
) -> EvaluationIndex:
    """Index the items of evaluation sets; a next attempt finds the files in the scratch folder.

    Raises:
        ValueError: With ``field``: a set has no files, no item with a text, or none of so many words.
    """
    folder = join(output_path, SCRATCH_FOLDER, "evaluations")
    files, owners = [], []
    for at, evaluation in enumerate(evaluations):
        found = input_files([evaluation.path], f"{field}[{at}].path")
        files += found
        owners += [at] * len(found)
    rows = dataset_of(files).load_file().map_shard(_Items(tuple(evaluations), tuple(owners), tuple(files)))
    items = flow_backend().execute(rows.write_parquet(part_pattern(join(folder, "items"), ".parquet"), item_schema()))
    if items.rejected:
        raise ValueError(
            f"{field}: {items.rejected:,} rows cannot be read, so their texts would not be found: mend them."
        )
    stored = tuple(input_files(list(items), field))
    names = tuple(evaluation.name for evaluation in evaluations)
    build = _Build(stored, names, field)
    flow_backend().execute(Dataset.from_list(list(lengths)).flat_map(build).write_binary(_index_pattern(output_path)))
    headers = headers_of(lengths, output_path)
    _check_headers(list(headers.values()), field)
    return EvaluationIndex(stored, headers)


def headers_of(lengths: Sequence[int], output_path: str) -> dict[int, IndexHeader]:
    """Return the heads of the indexes that ``index_evaluations`` made, by their lengths."""
    paths = [_index_pattern(output_path).format(shard=at, total=len(lengths)) for at in range(len(lengths))]
    return {length: read_header(path) for length, path in zip(lengths, paths, strict=True)}


def _index_pattern(output_path: str) -> str:
    return part_pattern(join(output_path, SCRATCH_FOLDER, "evaluations", "index"), ".bin")


def _check_headers(headers: Sequence[IndexHeader], field: str) -> None:
    """Refuse a set that has no runs of any length, and a length of which no set has any."""
    hint = "compare shorter runs, or give more of its fields"
    for counts in zip(*(header.evaluations for header in headers), strict=True):
        name, least = truncated_repr(counts[0].name), min(header.length for header in headers)
        if not counts[0].longest:
            raise ValueError(f"{field}: {name} has {counts[0].items:,} rows, and none has a word.")
        if not any(each.with_ngrams for each in counts):
            longest = counts[0].longest
            raise ValueError(f"{field}: no item of {name} has {least:,} words, the longest has {longest:,}: {hint}.")
    for header in headers:
        if not any(each.with_ngrams for each in header.evaluations):
            longest = max(each.longest for each in header.evaluations)
            raise ValueError(f"{field}: no item has {header.length:,} words, the longest has {longest:,}: {hint}.")


def item_schema() -> Any:
    """Return the columns of items: the number of their evaluation, their names, beginnings, and the words' hashes."""
    import pyarrow as pa

    return pa.schema(
        [("evaluation", pa.int32()), ("item", pa.string()), ("text", pa.string()), ("words", pa.large_binary())]
    )


@dataclass(frozen=True)
class _Items:
    """Function of ``map_shard`` that makes the item of each row; files belong to evaluations by their places."""

    evaluations: tuple[Evaluation, ...]
    owners: tuple[int, ...]
    files: tuple[InputFile, ...]

    def __call__(self, rows: Iterator[Any], shard: ShardInfo) -> Iterator[dict[str, Any]]:
        owner = self.owners[shard.shard_idx]
        evaluation, name = self.evaluations[owner], basename(self.files[shard.shard_idx].path)
        for number, row in enumerate(rows, 1):
            text = "\n".join(text for field in evaluation.fields for text in _texts(_value(row, field), field))
            label = f"{name}:{number}" if evaluation.id_field is None else _label(row, evaluation.id_field)
            yield {
                "evaluation": owner,
                "item": _encodable(label),
                "text": _encodable(text[:_MAX_EXCERPT]),
                "words": word_hashes(text).tobytes(),
            }


def _value(row: Any, field: str) -> Any:
    """Return a column, or a part of one that holds objects: ``choices.text``."""
    if not isinstance(row, dict) or field in row or "." not in field:
        return selected(row, [field])[field]
    name, *parts = field.split(".")
    return _part(selected(row, [name])[name], parts, field)


def _part(value: Any, parts: Sequence[str], field: str) -> Any:
    """Return the part of an object, or the list of those of a list of objects; None has none."""
    if value is None or not parts:
        return value
    if isinstance(value, list):
        return [_part(each, parts, field) for each in value]
    if not isinstance(value, dict) or parts[0] not in value:
        has = f"has {quote_first_names(value)}" if isinstance(value, dict) else f"is {truncated_repr(value)}"
        raise RowError(f"The row has no {field!r}: there is no {parts[0]!r} in what {has}.")
    return _part(value[parts[0]], parts[1:], field)


def _texts(value: Any, field: str, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a column, those of lists and objects in their order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)) and depth < _MAX_DEPTH:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each, field, depth + 1)
    elif value is not None:
        raise RowError(f"The column {field!r} holds {truncated_repr(value)}: give columns of texts.")


def _label(row: Any, field: str) -> str:
    value = selected(row, [field])[field]
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise RowError(f"The id {field!r} is {truncated_repr(value)}: ids are texts or whole numbers.")
    return str(value)


def _encodable(text: str) -> str:
    """Replace halves of characters, which files cannot hold."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class _Build:
    """Function of ``flat_map`` that makes the index of one length."""

    files: tuple[InputFile, ...]
    names: tuple[str, ...]
    field: str

    def __call__(self, length: int) -> list[Any]:
        return pack_index(Items.read([file.path for file in self.files], self.names, self.field), length)
