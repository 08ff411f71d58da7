"""Convert Dolma's documents, ``documents/*.jsonl.gz`` of ``{id, text, source, metadata}``, to a set and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tradewind.datasets import Dataset, dataset_step
from tradewind.datasets.files import join
from tradewind.datasets.rows import RowError
from tradewind.recipes.data.document_sets import documents_of, part_pattern, path_input, set_files
from tradewind.recipes.data.normalized import normalize
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, InputName, this_output_path
from tradewind.steps.fields import PATH, FieldRule, check_fields
from tradewind.steps.needs import needs
from tradewind.text import single_line, truncated_repr

_FOLDER = "documents"
_DOLMA = FieldRule(
    "a step, a path inside one, or another path, with a folder 'documents'",
    lambda value: isinstance(value, (str, PurePath)) and bool(str(value).strip("/")),
    (ExecutorStep, InputName),
)


@dataclass(frozen=True)
class ToDolmaConfig:
    """What ``to_dolma`` converts."""

    documents: str
    """A set of documents."""
    output_path: str
    """Gets ``documents/*.jsonl.gz``."""

    def __post_init__(self) -> None:
        check_fields(self, documents=PATH, output_path=PATH)


@naming_step
def from_dolma(name: str, dolma: Any, **options: Any) -> ExecutorStep:
    """Return a step that makes a set of documents from the files below ``documents/`` of a data set of Dolma's form.

    Args:
        name: Name of the step.
        dolma: The data set: a step or a folder. Its ids become ``source_id``, and its metadata a JSON text.
        options: Of ``normalize``, such as ``shards``, and of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    _DOLMA.check("dolma", dolma)
    documents = join(str(dolma), _FOLDER) if isinstance(dolma, (str, PurePath)) else dolma / _FOLDER
    return normalize(name, documents, **options)


@naming_step
def to_dolma(name: str, documents: Any, **options: Any) -> ExecutorStep:
    """Return a step that writes a set of documents as Dolma's; an id is the original one, if there is one.

    Args:
        name: Name of the step.
        documents: A set of documents: a step or a folder.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    config = ToDolmaConfig(path_input("documents", documents), this_output_path())
    return dataset_step(name, as_dolma, config, **({"description": "Documents in Dolma's form."} | options))


@needs("pyarrow", "zstandard", extra="data")
def as_dolma(config: ToDolmaConfig) -> Dataset[Any]:
    """Return the pipeline of ``to_dolma``."""
    rows = documents_of(set_files(config.documents, "documents")).map(_dolma)
    return rows.write_jsonl(part_pattern(join(config.output_path, _FOLDER), ".jsonl.gz"))


def _dolma(document: dict[str, Any]) -> dict[str, Any]:
    own = document["id"] if document["source_id"] is None else document["source_id"]
    try:
        metadata = json.loads(document["metadata"] or "{}")
    except (ValueError, RecursionError) as error:
        shown = truncated_repr(document["metadata"])
        raise RowError(f"The metadata of {truncated_repr(own)} is no JSON: {single_line(error)}: {shown}.") from error
    return {"id": own, "text": document["text"], "source": document["source"] or "", "metadata": metadata}
