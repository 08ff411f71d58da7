"""Files that try to fill the memory, log or error of the process that tokenizes them."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets import token_rows
from tradewind.datasets.token_encoding import _encode_rows
from tradewind.datasets.token_rows import TokenizingError, row_place, rows_of
from tradewind.text import quote_first_names, single_line


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the bounds so that a test reaches them."""
    monkeypatch.setattr(token_rows, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(token_rows, "MAX_JSON_LIST_BYTES", 100)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_line_beyond_limit_refused(tmp_path: Path, name: str) -> None:
    lines = b'{"text": "a"}\n' + b'{"text": "' + b"a" * 10_000 + b'"}\n'
    (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    rows = rows_of(str(tmp_path / name), "text")
    assert next(rows) == (1, {"text": "a"})
    with pytest.raises(TokenizingError, match=r"line 2 is malformed: it has more than 100 bytes\.$"):
        next(rows)


@pytest.mark.usefixtures("small")
def test_list_beyond_limit_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[\n" + "1,\n" * 10 + "1]")
    assert [row for _, row in rows_of(str(path), None)] == [1] * 11
    path.write_text("[\n" + "1,\n" * 1000 + "1]")
    with pytest.raises(TokenizingError, match="the list has more than 100 bytes"):
        list(rows_of(str(path), None))


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


def test_single_line_replaces_control_characters() -> None:
    assert single_line(" a\n\x1b\u202eb ") == "a ??b"
    assert single_line("x" * 1000) == "x" * 299 + "…"
    assert quote_first_names(json.loads('["\\u001b", "b"]')) == "'?', 'b'"
