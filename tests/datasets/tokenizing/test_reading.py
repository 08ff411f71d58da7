"""Rows of files as they are found: with marks, ends of lines and encodings of all kinds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tradewind.datasets.tokenizing.reading import TokenizingError, rows_of

BOM = b"\xef\xbb\xbf"
LISTED = b'[{"text": "a"},\n{"text": "b"}]'


def rows(path: Path, content: bytes) -> list[tuple[int, str]]:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return [(number, row["text"]) for number, row in rows_of(str(path), "text")]


@pytest.mark.parametrize("name", ["a.json", "of.jsonl/a.json"])
@pytest.mark.parametrize("mark", [b"", BOM])
def test_a_list_is_a_list_wherever_it_lies_and_with_a_mark(tmp_path: Path, name: str, mark: bytes) -> None:
    assert rows(tmp_path / name, mark + LISTED) == [(1, "a"), (2, "b")]


def test_marks_ends_of_lines_and_separators_are_no_part_of_a_row(tmp_path: Path) -> None:
    lines = '{"text": "a\u2028b\x85"}\r\n \r\n{"text": "c"}'.encode()
    assert rows(tmp_path / "a.jsonl", BOM + lines) == [(1, "a\u2028b\x85"), (3, "c")]
    assert rows(tmp_path / "empty.jsonl", BOM) == []


@pytest.mark.parametrize("ending", ["jsonl.gz", "jsonl.zst"])
def test_an_archive_of_several_members_is_one_file_and_none_that_is_cut_is_a_shorter_one(
    tmp_path: Path, ending: str
) -> None:
    texts = [(number, f"text {number}") for number in range(1, 9)]
    lines = [json.dumps({"text": text}).encode() + b"\n" for _, text in texts]
    pack = gzip.compress if ending.endswith("gz") else lambda data: pa.compress(data, "zstd", asbytes=True)
    first, second = pack(b"".join(lines[:4])), pack(b"".join(lines[4:]))
    assert rows(tmp_path / f"a.{ending}", first + second) == texts
    for cut in range(1, len(second)):
        with pytest.raises(TokenizingError, match="cannot be read on after line"):
            rows(tmp_path / f"a.{ending}", first + second[:cut])


def test_a_column_that_is_no_utf_8_is_told_with_its_file(tmp_path: Path) -> None:
    ends = pa.array([0, 1], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(1, ends, pa.py_buffer(b"\xff"))
    parquet.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(TokenizingError, match="a.parquet cannot be read on after row 0: 'utf-8' codec"):
        list(rows_of(str(tmp_path / "a.parquet"), "text"))
