"""Exact duplicates of documents and paragraphs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run
from tradewind.datasets import PipelineError
from tradewind.recipes.data import deduplicate_exact, normalize
from tradewind.recipes.data.document_sets import document_schema
from tradewind.recipes.data.duplicates.exact import _paragraphs
from tradewind.steps import ExecutorStep

INPUTS = Path(__file__).parent / "inputs"


def documents(shards: int = 2) -> ExecutorStep:
    return normalize("docs", INPUTS, shards=shards)


def test_duplicate_paragraphs_are_as_in_the_snapshot(tmp_path: Path) -> None:
    folder = run(deduplicate_exact("duplicates", documents(), by="paragraph"), tmp_path)
    check_snapshot("duplicate_paragraphs", folder, INPUTS)


def test_duplicate_documents_are_as_in_the_snapshot(tmp_path: Path) -> None:
    folder = run(normalize("docs", INPUTS, shards=1), tmp_path)
    file = folder / "part-00000-of-00001.parquet"
    rows = parquet.read_table(file).to_pylist()
    rows += [{**row, "id": row["id"] + suffix} for row in rows[1:] for suffix in "ab"]
    parquet.write_table(pa.Table.from_pylist(sorted(rows, key=lambda row: row["id"]), document_schema()), file)
    check_snapshot("duplicate_documents", run(deduplicate_exact("duplicates", folder), tmp_path), INPUTS)


@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "\n\na\n \n\nb", "a\nb\n\n", " \n" * 9 + "é\n😀"])
def test_paragraph_spans_cover_the_text_after_leading_blanks(text: str) -> None:
    spans = [(piece["start"], piece["end"]) for piece in _paragraphs({"id": "x", "text": text})]
    lines = [line for line in text.split("\n") if line.strip()]
    assert [text[start:end].strip() for start, end in spans] == [line.strip() for line in lines]
    assert [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]
    assert not spans or spans[-1][1] == len(text)


def cut(folder: Path) -> None:
    (folder / "part-00001-of-00002.parquet").unlink()


def swap(folder: Path) -> None:
    first, second = sorted(folder.glob("*.parquet"))
    shutil.move(first, folder / "aside")
    shutil.move(second, first)
    shutil.move(folder / "aside", second)


def twice(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        table = parquet.read_table(file)
        parquet.write_table(pa.concat_tables([table, table]).sort_by("id"), file)


def unsorted(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        parquet.write_table(parquet.read_table(file).sort_by([("id", "descending")]), file)


def without_text(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        parquet.write_table(parquet.read_table(file).drop_columns("text"), file)


def empty(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        file.unlink()


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (cut, "documents: .* is not one whole set of 1 shards: see part-0000"),
    (swap, "belongs to another shard: make the set with normalize"),
    (twice, "occurs twice"),
    (unsorted, "follows a larger one"),
    (without_text, "has no column 'text'"),
    (empty, "documents: .* has no part-00000-of-00001.parquet: give a set"),
]


@pytest.mark.parametrize(("damage", "message"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_set_that_is_none_is_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = run(documents(), tmp_path)
    damage(folder)
    with pytest.raises((PipelineError, ValueError), match=message):
        run(deduplicate_exact("duplicates", folder), tmp_path)


def test_wrong_arguments_are_refused_with_step_and_field() -> None:
    for options, message in ({"by": "line"}, "by='line': give one of document, paragraph"), ({"by": None}, "by=None"):
        with pytest.raises(ValueError, match=re.escape(f"Step 'd': {message}")):
            deduplicate_exact("d", "docs", **options)
