"""Files that data sets read and write: each format, and what is wrong with a file, told with its line or column."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import json
import os
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from tradewind.datasets import Backend, Dataset, PipelineError
from tradewind.datasets.token_rows import MAX_LINE_BYTES

ROWS = [{"id": number, "text": f"tëxt {number}", "tags": ["a", None]} for number in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def run(data: Dataset[Any], **options: Any) -> Any:
    return Backend("sync", **options).execute(data)


def file_with(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def as_parquet(rows: list[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file, **options)
    return file.getvalue()


def as_zip(members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


@pytest.mark.parametrize("ending", PACKERS)
def test_packed_lines_and_texts_are_read_with_their_paths(tmp_path: Path, ending: str) -> None:
    lines = file_with(tmp_path, f"a.jsonl{ending}", PACKERS[ending](LINES + b"\n"))
    text = file_with(tmp_path, f"b.html{ending}", PACKERS[ending]("<p>ä".encode()))
    files = Dataset.from_list([lines])
    assert run(files.load_jsonl()) == run(files.load_file()) == ROWS
    assert run(files.load_file(["text"], True, "path")) == [{"text": row["text"], "path": lines} for row in ROWS]
    assert run(Dataset.from_list([text]).load_text(True)) == [{"text": "<p>ä", "file_path": text}]


def test_parquet_is_read_by_rows_and_batches(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.parquet", as_parquet(ROWS))
    files = Dataset.from_list([path])
    assert run(files.load_parquet()) == run(files.load_file()) == ROWS
    assert run(files.load_parquet(["text"], True)) == [{"text": row["text"], "file_path": path} for row in ROWS]
    (batch,) = run(files.load_parquet(["id"], True, batch_mode=True))
    assert batch.to_pydict() == {"id": [0, 1, 2], "file_path": [path] * 3}


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_of_archive_are_rows_that_go_nowhere(tmp_path: Path, packing: int) -> None:
    members = {"../../out.html": b"1", "/etc/a.html": b"2", "folder/": b"", "b.txt": b"3"}
    path = file_with(tmp_path, "a.zip", as_zip(members, packing))
    found = run(Dataset.from_list([path]).load_zip_members("*.html", True))
    assert found == [
        {"filename": name, "content": members[name], "file_path": path} for name in ("../../out.html", "/etc/a.html")
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("name", ["{shard}.jsonl", "{shard}.jsonl.gz", "{shard}.jsonl.zst", "{shard}.parquet"])
def test_written_rows_are_read_as_they_were(tmp_path: Path, name: str) -> None:
    data = Dataset.from_list([ROWS, []]).flat_map(list)
    pattern = f"{tmp_path}/{name}"
    written = data.write_parquet(pattern) if name.endswith("parquet") else data.write_jsonl(pattern)
    assert run(written.load_file(["id", "text", "tags"])) == ROWS
    assert len(list(tmp_path.iterdir())) == 2


def test_record_batches_and_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    source = file_with(tmp_path, "a.parquet", as_parquet(ROWS))
    batches = Dataset.from_list([source]).load_parquet(batch_mode=True)
    (copy,) = run(batches.write_parquet(f"{tmp_path}/b.parquet"))
    assert parquet.read_table(copy).to_pylist() == ROWS
    parts = Dataset.from_list([[b"ab", bytearray(b"c")]]).flat_map(list)
    (plain,) = run(parts.write_binary(f"{tmp_path}/c"))
    assert Path(plain).read_bytes() == b"abc"


def encrypted(archive: bytes) -> bytes:
    """Return an archive whose only member says that it is encrypted."""
    flags = {b"PK\x03\x04": 6, b"PK\x01\x02": 8}
    data = bytearray(archive)
    for signature, at in flags.items():
        data[archive.index(signature) + at] |= 1
    return bytes(data)


@pytest.mark.parametrize(
    "name, content, told, others",
    [
        ("a.jsonl", LINES + b'{"id": 3\n' + LINES, "a.jsonl line 4 is malformed: Expecting ',' delimiter", 2 * ROWS),
        ("a.jsonl", b"\xff\n" + LINES, "a.jsonl line 1 is malformed: 'utf-8' codec can't decode", ROWS),
        ("a.jsonl", b"[" * 100_000 + b"\n" + LINES, "a.jsonl line 1 is malformed: maximum recursion depth", ROWS),
        ("a.zip", encrypted(as_zip({"a.txt": b"1"})), "a.zip member 'a.txt' cannot be read: it is encrypted", []),
        (
            "a.zip",
            as_zip({"a": b"0"}, zipfile.ZIP_STORED).replace(b"a0", b"a1"),
            "a.zip member 'a' cannot be read: Bad CRC-32",
            [],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_line_or_member_is_told_or_left_out(
    tmp_path: Path, name: str, content: bytes, told: str, others: list[Any]
) -> None:
    assert_told_or_left_out(file_with(tmp_path, name, content), told, others)


@pytest.mark.slow
def test_bombs_are_bounded_told_and_left_out(tmp_path: Path) -> None:
    """Of a line that has no end, the rest is no line of its own."""
    long = b'{"a": "' + b"x" * MAX_LINE_BYTES + b'"}\n'
    lines = file_with(tmp_path, "a.jsonl.gz", gzip.compress(long + LINES, 1))
    assert_told_or_left_out(lines, "a.jsonl.gz line 1 is malformed: it has more than 33,554,432 bytes", ROWS)
    members = file_with(tmp_path, "a.zip", as_zip({"a": long, "b": b"1"}))
    content = [{"filename": "b", "content": b"1"}]
    directory = tmp_path / "b.zip"  # of 49 MiB, in a hole of the file
    directory.write_bytes(b"")
    os.truncate(directory, 49 << 20)
    with directory.open("ab") as file:
        file.write(b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 49 << 20, 0, 0))
    with pytest.raises(PipelineError, match="b.zip has a directory of 51,380,224 bytes, too many members"):
        run(Dataset.from_list([str(directory)]).load_zip_members(), on_error="skip")
    with pytest.raises(PipelineError, match="a.jsonl.gz has more than 33,554,432 bytes"):
        run(Dataset.from_list([lines]).load_text())
    assert_told_or_left_out(members, "a.zip member 'a' cannot be read: it has more than 33,554,432 bytes", content)


def assert_told_or_left_out(path: str, told: str, others: list[Any]) -> None:
    files = Dataset.from_list([path])
    data = files.load_zip_members() if path.endswith(".zip") else files.load_jsonl()
    with pytest.raises(PipelineError, match=re.escape(told)):
        run(data)
    for on_error in ("skip", "quarantine"):
        if not others:
            with pytest.raises(PipelineError, match=f": 1 rows failed, and none is left: .*{re.escape(told)}"):
                run(data, on_error=on_error)
            continue
        found = run(data, on_error=on_error)
        assert (found, found.rejected) == (others, 1)


NOW = datetime.datetime(2026, 11, 29, 10, 30)
MANY = 10_001
"""More rows than the first group of a Parquet file."""


def rows_then(last: dict[str, Any], column: Any = None) -> list[Any]:
    return [{"a": column, "nested": [{"b": 1}]} for _ in range(MANY - 1)] + [last]


@pytest.mark.parametrize(
    "rows, schema, told",
    [
        (
            [{"a": 1}, {"a": "x"}],
            None,
            "0.parquet rows 1 and following: the column 'a' does not fit: Could not convert",
        ),
        (
            rows_then({"a": "x"}, 1),
            None,
            "0.parquet rows 10,001 and following: the column 'a' does not fit, and is int64",
        ),
        (rows_then({"a": "x"}), None, "the column 'a' does not fit, and is null in earlier rows or the schema: "),
        (rows_then({"a": 1.5}, 1), None, "the column 'a' has numbers of the type double, and earlier rows"),
        (rows_then({"a": NOW}, NOW.date()), None, "the column 'a' has times, and earlier rows"),
        (rows_then({"c": 1}), None, "they have the column 'c', and earlier rows or the schema not"),
        (rows_then({"nested": [{"d": 1}]}), None, "the column 'nested' has the field 'd', and earlier rows"),
        (
            [{"a": 1, "b": 2}],
            pa.schema([("a", pa.int64())]),
            "they have the column 'b', and earlier rows or the schema",
        ),
        ([{"a": 300}], pa.schema([("a", pa.int8())]), "the column 'a' does not fit, and is int8"),
        ([{"b": 1}, {"a": 1}], pa.schema([pa.field("b", pa.int8(), False), ("a", pa.int8())]), "non-nullable"),
        ([{"a": "\ud800"}], None, "the column 'a' does not fit: 'utf-8' codec"),
        ([{"a": object()}], None, "the column 'a' does not fit: Could not convert <object"),
        ([{1: 2}], None, "they have the column 1: names are texts"),
        ([{}], None, "they have no column, which Parquet cannot hold"),
        (["a"], None, "write_parquet got a str: give dicts, or only record batches"),
        ([{"a": 1}, pa.record_batch({"a": [1]})], None, "write_parquet got a RecordBatch: give dicts, or only"),
        ([pa.record_batch({"a": [1]}), pa.record_batch({"a": ["x"]})], None, "the record batch has another schema"),
    ],
    ids=range(17),
)
def test_row_that_does_not_fit_parquet_is_told_with_column(
    tmp_path: Path, rows: list[Any], schema: Any, told: str
) -> None:
    data = Dataset.from_list([rows]).flat_map(list).write_parquet(f"{tmp_path}/{{shard}}.parquet", schema)
    with pytest.raises(PipelineError, match=re.escape(told)) as raised:
        run(data)
    assert told.startswith("write_parquet") or "the row was" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_parquet_takes_what_schema_allows(tmp_path: Path) -> None:
    kinds = pa.schema(
        [("a", pa.float32()), ("m", pa.map_(pa.string(), pa.int8())), ("n", pa.struct([("b", pa.int8())]))]
    )
    rows = [{"a": 1, "m": [("k", 1)]}, {"n": {"b": None}}]
    (path,) = run(Dataset.from_list([rows]).flat_map(list).write_parquet(f"{tmp_path}/a.parquet", kinds))
    assert parquet.read_table(path).to_pylist() == [
        {"a": 1.0, "m": [("k", 1)], "n": None},
        {"a": None, "m": None, "n": {"b": None}},
    ]


@pytest.mark.parametrize(
    "kind, row, told",
    [
        ("jsonl", {"a": {1}}, "A row has no JSON form: Object of type set is not JSON serializable: {'a': {1}}"),
        ("jsonl", {"a": "\ud800"}, "A row has no JSON form: 'utf-8' codec can't encode"),
        ("jsonl.gz", b"a", "A row has no JSON form: Object of type bytes"),
        ("bin", "a", "write_binary got a str: give bytes"),
    ],
)
def test_row_without_form_leaves_no_file_or_is_left_out(tmp_path: Path, kind: str, row: Any, told: str) -> None:
    good: Any = b"a" if kind == "bin" else {}
    files, pattern = Dataset.from_list([[row, good]]).flat_map(list), f"{tmp_path}/out/{{shard}}.{kind}"
    data = files.write_binary(pattern) if kind == "bin" else files.write_jsonl(pattern)
    with pytest.raises(PipelineError, match=re.escape(told)):
        run(data)
    assert list((tmp_path / "out").iterdir()) == []
    assert run(data, on_error="skip").rejected == 1


TOKENS = {"input_ids": [1, 2]}


@pytest.mark.parametrize(
    "shards, told",
    [
        ([[[1, 2]]], "got [1, 2]: give rows of token ids, such as {'input_ids': [1, 2]}"),
        ([[{}]], "got {}: give rows of token ids"),
        ([[{"../other/input_ids": [1]}]], "a column is called '../other/input_ids': give letters"),
        ([[{"..": [1]}]], "a column is called '..': give letters"),
        ([[{"input_ids": [1.0]}]], "the column 'input_ids' is [1.0]: give a list of whole numbers"),
        ([[{"input_ids": [True]}]], "the column 'input_ids' is [True]: give a list of whole numbers"),
        ([[{"input_ids": "text"}]], "the column 'input_ids' is 'text': give a list"),
        ([[{"input_ids": [[1], [2, 3]]}]], "the column 'input_ids' is [[1], [2, 3]]: give a list"),
        ([[{"input_ids": [1 << 70]}]], "give a list of whole numbers"),
        ([[{"input_ids": [0, 1 << 31]}]], "the column 'input_ids' has 0 to 2,147,483,648: tokens are below"),
        ([[TOKENS, {"ids": [1]}]], "a row has the columns 'ids', and an earlier one 'input_ids': give all rows"),
        ([[TOKENS], [], [TOKENS | {"mask": []}]], "a row has the columns 'input_ids', 'mask', and an earlier one"),
        ([[], []], "got no rows: a cache has at least one"),
    ],
)
def test_rows_that_are_no_tokens_make_no_cache(tmp_path: Path, shards: list[Any], told: str) -> None:
    data = Dataset.from_list(shards).flat_map(list).write_levanter_cache(f"{tmp_path}/cache")
    with pytest.raises(PipelineError, match=f"write_levanter_cache.*{re.escape(told)}"):
        run(data)
    assert [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.part")] == []


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"


@pytest.mark.parametrize(
    "name, content, told",
    [
        ("a.jsonl.gz", gzip.compress(LINES)[:-9], "a.jsonl.gz cannot be read on after row "),
        ("a.jsonl.gz", LINES, "a.jsonl.gz cannot be read on after row 0: Not a gzipped file"),
        ("a.jsonl.zst", zstandard.compress(LINES)[:-9], "a.jsonl.zst cannot be read on after row 0: "),
        ("a.jsonl.bz2", bz2.compress(LINES)[:-9], "a.jsonl.bz2 cannot be read on after row "),
        ("a.parquet", as_parquet(ROWS)[:-9], "a.parquet is no Parquet file that can be read on after row 0: "),
        ("a.parquet", b"", "a.parquet is no Parquet file that can be read on after row 0: "),
        ("a.parquet", POINTER, "a.parquet is a pointer of Git LFS"),
        ("a.jsonl", POINTER, "a.jsonl is a pointer of Git LFS"),
        ("a.jsonl.gz", POINTER, "a.jsonl.gz is a pointer of Git LFS"),
        ("a.zip", as_zip({"a": b"0"})[:-9], "a.zip cannot be read on after row 0: File is not a zip file"),
        ("a.txt", b"\xff", "a.txt is no text in UTF-8"),
        ("a.csv", LINES, "a.csv has an unknown ending"),
        ("gone.jsonl", None, "gone.jsonl is gone"),
        ("a.parquet", as_parquet(ROWS), "a.parquet has no column 'score': it has 'id', 'text', 'tags'"),
        ("a.jsonl", LINES, "The row has no column 'score': it has 'id', 'text', 'tags', while it read "),
        ("a.jsonl", b"[1]\n", "a.jsonl row 1, the row was [1]"),
    ],
)
def test_unreadable_file_is_told_whatever_happens_to_rows(
    tmp_path: Path, name: str, content: bytes | None, told: str
) -> None:
    path = str(tmp_path / name) if content is None else file_with(tmp_path, name, content)
    files = Dataset.from_list([path])
    data = files.load_file(["score" if "row 1" in told or "score" in told else "id"])
    if name.endswith(".zip"):
        data = files.load_zip_members()
    elif ".txt" in name:
        data = files.load_text()
    with pytest.raises(PipelineError, match=re.escape(told)):
        run(data)
