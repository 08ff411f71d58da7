"""Files that try to fill the memory, log or error of the process that tokenizes them."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from tradewind.datasets import token_rows
from tradewind.datasets.token_encoding import _encode_rows
from tradewind.datasets.token_rows import TokenizingError, row_place, rows_of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the bounds so that a test reaches them."""
    monkeypatch.setattr(token_rows, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(token_rows, "_MAX_BLANK", 100)
    monkeypatch.setattr(token_rows, "_READ_BYTES", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ('{"text": "' + "a" * 10_000 + '"}\n', "line 2 is malformed: it has more than 100 bytes: split its text"),
        ("\n" * 10_000, "line 102 is malformed: more than 100 blank lines end there"),
    ],
    ids=["long", "blank"],
)
def test_line_beyond_limit_refused(tmp_path: Path, name: str, rest: str, reason: str) -> None:
    lines = b'{"text": "a"}\n' + rest.encode()
    if name == "a.parquet":
        pq.write_table(pa.table({"text": ["a", rest * 2], "b": ["a", "b"]}), tmp_path / name, row_group_size=1)
        reason = "cannot be read on after row 0: its rows have more than 100 bytes on average"
        assert [number for number, _ in rows_of(str(tmp_path / name), "b")] == [1, 2]
    else:
        (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    with pytest.raises(TokenizingError, match=rf"{reason}\.$"):
        list(rows_of(str(tmp_path / name), "text"))


LISTS: list[tuple[bytes, Any]] = [
    (b"[]", []),
    (b" [ ] \n", []),
    (b"[1, 2 ,34]", [1, 2, 34]),
    ('[{"text": "\u00e9\u2028"}, "]", [[]], null]\n'.encode(), [{"text": "\u00e9\u2028"}, "]", [[]], None]),
    (b"[" + b"1,\n" * 1000 + b"1]", [1] * 1001),
    (b'["' + b"a" * 1000 + b'"]', "line 1 is malformed: element 1 of its list has more than 100 characters"),
    (b"[1, [2", "line 1 is malformed: element 2 of its list: Expecting ',' delimiter"),
    (b"[1,]", "element 2 of its list: Expecting value"),
    (b"[1 2]", "line 1 is malformed: element 1 of its list is followed by '2'"),
    (b"[1, 2", "element 2 of its list is the last, and the list is cut off"),
    (b"[", "element 1 of its list: Expecting value"),
    (b"[1]\n[2]", "its list is followed by something else"),
    (b"[]1", "its list is followed by something else"),
    (b'["\xff"]', "codec can't decode"),
    (b'["\xc3', "unexpected end of data"),
    (b"[" * 100_000, "more than 100 characters|recursion"),
]
"""Content of a file, and its elements or its refusal."""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("content", "found"), LISTS)
def test_list_is_read_element_by_element(tmp_path: Path, content: bytes, found: Any) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(content))
    if isinstance(found, list):
        assert [row for _, row in rows_of(str(path), None)] == found
        return
    with pytest.raises(TokenizingError, match=f"a.json.gz .*{found}"):
        list(rows_of(str(path), None))


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b'["ab",'), ("a.json", b"[{},"), ("b.json", b"[0, [],")])
def test_small_file_of_many_empty_values_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content + content[1:].removeprefix(b"0, ") * 5_000_000)
    with pytest.raises(TokenizingError, match=r"line 1 is malformed: it has more than 4,194,304 values"):
        list(rows_of(str(tmp_path / name), None))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_pointer_of_large_file_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(TokenizingError, match=rf"{name} is a pointer of Git LFS, .* fetch that with 'git lfs pull'"):
        list(rows_of(str(tmp_path / name), None))


def test_line_of_maximum_length_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}')
    monkeypatch.setattr(token_rows, "MAX_LINE_BYTES", len('{"text": "a"}\n'))
    assert [row["text"] for _, row in rows_of(str(path), "text")] == ["a", "b"]


def test_error_names_some_of_many_keys(tmp_path: Path) -> None:
    rows: list[tuple[int, Any]] = [(1, {f"k{number}": 1 for number in range(100_000)})]
    with pytest.raises(TokenizingError, match=r"has no 'text': it has 'k0', .* 'k19', \.\.\.\. Give") as told:
        _encode_rows(
            lambda given: [{"input_ids": row["text"]} for row in given], rows, partial(row_place, "a.jsonl"), "text"
        )
    assert len(str(told.value)) < 400


def test_template_error_is_printable_and_bounded() -> None:
    def encode(_: Any) -> Any:
        raise ValueError(f"\x1b[2J{'x' * 100_000}")

    with pytest.raises(TokenizingError, match="does not fit the format") as told:
        _encode_rows(encode, [(1, {})], partial(row_place, "a.jsonl"), None)
    assert str(told.value).isprintable() and len(str(told.value)) < 400
