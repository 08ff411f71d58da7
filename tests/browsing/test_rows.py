"""Rows of each format: pages follow one another without gaps, filters are bounded, damaged files are reported."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.browsing.files import LINES, ROWS, WRITERS, allowed
from tradewind.browsing import look, packed, paging
from tradewind.browsing.access import Access
from tradewind.browsing.answers import RowPage
from tradewind.browsing.refusals import ChangedError, UnreadableError, WrongKindError


@pytest.fixture(params=WRITERS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / request.param
    WRITERS[request.param](path)
    return str(path)


def page_of(path: str, **asked: Any) -> RowPage:
    return look.rows(allowed(Path(path).parent), path, **asked)


def ids(page: RowPage) -> list[int]:
    at = [column.name for column in page.columns].index("id") if page.rows else 0
    return [int(str(row.values[at])) for row in page.rows]


def test_pages_follow_one_another_without_gaps(file: str) -> None:
    found: list[int] = []
    numbers: list[int | None] = []
    cursor = None
    for limit in (1, 2, 100, 300, 1000):
        page = page_of(file, cursor=cursor, limit=limit)
        assert [column.name for column in page.columns] == ["id", "text"]
        found += ids(page)
        numbers += [row.number for row in page.rows]
        cursor = page.next
    assert cursor is None
    assert found == [row["id"] for row in ROWS]
    assert numbers == list(range(1, 1001))
    assert page.rows[-1].values[1] == "row 999 äöü"


def test_each_row_is_found_again_by_its_place(file: str) -> None:
    page = page_of(file, limit=1000)
    for row in random.Random(1).sample(page.rows, 20):
        assert page_of(file, cursor=row.at, limit=1).rows == [row]
        whole = look.value(allowed(Path(file).parent), file, row.at, "text")
        assert (whole.text, whole.kind, whole.cut) == (row.values[1], "text", False)


def test_fraction_leads_into_the_middle(file: str) -> None:
    page = page_of(file, at=0.5, limit=10)
    assert 400 < ids(page)[0] < 600
    assert ids(page) == list(range(ids(page)[0], ids(page)[0] + 10))
    assert ids(page_of(file, at=0.0, limit=2)) == [0, 1]
    assert page_of(file, at=1.0).rows == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("ROW 99", [99, *range(990, 1000)]),
        ("text:row 5 ", [5]),
        ("id:row", []),
        ("id=5", [5]),
        ("text=ROW 5 ÄÖÜ", [5]),
        ("text=row 5", []),
    ],
)
def test_filter_looks_in_values_of_any_case(file: str, wanted: str, found: list[int]) -> None:
    page = page_of(file, filter=wanted, limit=1000)
    assert (ids(page), page.scanned, page.next) == (found, 1000, None)


def test_filter_ends_at_its_bound_and_goes_on(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MAX_SCANNED_ROWS", 400)
    page = page_of(file, filter="row 999")
    assert (page.rows, page.scanned) == ([], 400)
    assert page.note == "The page ends after 400 rows, of which 0 match."
    page = page_of(file, filter="row 999", cursor=page.next)
    assert (page.rows, page.scanned) == ([], 400)
    assert ids(page_of(file, filter="row 999", cursor=page.next)) == [999]


def test_matches_after_a_page_are_counted(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(file, filter="row 99", limit=3)
    assert (ids(page), page.more) == ([99, 990, 991], None if packed.is_packed(file) else 8)
    rest = page_of(file, filter="row 99", cursor=page.next)
    assert (ids(rest), rest.more) == ([*range(992, 1000)], 0)
    monkeypatch.setattr(paging, "_COUNT_S", -1.0)
    assert page_of(file, filter="row 99", limit=3).more is None and page_of(file).more is None


def test_page_has_only_the_named_columns(file: str) -> None:
    page = page_of(file, columns=["text"], limit=1)
    assert [column.name for column in page.columns] == ["text"]
    assert page.rows[0].values == ["row 0 äöü"]


def test_long_values_are_cut_and_marked(file: str) -> None:
    page = page_of(file, limit=1, chars=3)
    assert (page.rows[0].values[1], page.rows[0].cut) == ("row", [1])


def test_page_ends_when_its_texts_are_large(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 1000)
    page = page_of(file, limit=1000)
    assert 10 < len(page.rows) < 30 and page.note is not None and "which have" in page.note
    assert ids(page_of(file, cursor=page.next, limit=1)) == [len(page.rows)]


def test_places_of_a_changed_file_are_refused(file: str) -> None:
    first = page_of(file, limit=10)
    path, other = Path(file), Path(file).with_name(f"other-{Path(file).name}")
    WRITERS[path.name](other)
    other.replace(path)  # the same rows in another file: a reader cannot know
    for ask in (
        lambda: page_of(file, cursor=first.next),
        lambda: look.value(allowed(path.parent), file, first.rows[3].at, "text"),
    ):
        with pytest.raises(ChangedError, match="has changed since"):
            ask()
    assert page_of(file).note is None


def test_grown_file_continues_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 0}\n{"id": 1}\n')
    first = page_of(str(path), limit=1)
    with path.open("a") as file:
        file.write('{"id": 2}\n')
    page = page_of(str(path), cursor=first.next)
    assert ids(page) == [1, 2] and page.note is not None and "has grown" in page.note
    with path.open("w") as file:
        file.write('{"id": 7}\n')
    with pytest.raises(ChangedError):
        page_of(str(path), cursor=page.rows[0].at)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("score/exact=0", [0, 2]),
        ("score/exact=1.0", [1]),
        ("flag=TRUE", [1]),
        ("https://example.org/a", [2]),
        ("url:example", [2]),
        ("score/exact=0 & id=2", [2]),
        ("id=2 & url:EXAMPLE & score/exact=1", []),
        ("url:tom & jerry", [4]),
        ("tom & jerry", [4]),
    ],
)
def test_exact_filter_compares_numbers_and_flags(tmp_path: Path, wanted: str, found: list[int]) -> None:
    path = tmp_path / "a.jsonl"
    rows = [
        {"id": 0, "score/exact": 0.0},
        {"id": 1, "score/exact": 1, "flag": True},
        {"id": 2, "score/exact": 0, "url": "https://example.org/a"},
        {"id": 3, "score/exact": 0.05},
        {"id": 4, "url": "Tom & Jerry"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ids(page_of(str(path), filter=wanted)) == found


@pytest.mark.parametrize(
    "cursor", ["x", "1@", "1@x", "1@00000000ffffx", "-1", "~", "1:2:3", "٣", "1e3", "9" * 30, "~9999999"]
)
def test_bad_cursor_is_an_error_or_the_end(file: str, cursor: str) -> None:
    try:
        assert page_of(file, cursor=cursor).rows == []
    except (ChangedError, UnreadableError) as error:
        assert file in str(error)


def test_time_limit_ends_a_page_where_the_next_begins(file: str) -> None:
    access = allowed(Path(file).parent)
    access.deadline = 0.0
    try:
        page = look.rows(access, file, limit=1000)
    except UnreadableError:
        pytest.fail("a deadline is no damage")
    if page.rows:
        assert ids(page_of(file, cursor=page.next, limit=1)) == [len(page.rows)]
    assert page.note is not None


def test_values_of_json_keep_their_kinds(tmp_path: Path) -> None:
    row = {"n": None, "b": True, "i": 2**53, "f": 1.5, "big": 10**400, "nan": float("nan"), "l": [1, {"a": "é"}], "": 0}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + '\n[1]\n"\\ud800x"\n{"new": 1}\n')
    page = page_of(str(path))
    names = [column.name for column in page.columns]
    assert names == ["n", "b", "i", "f", "big", "nan", "l", "", "value", "new"]
    shown = dict(zip(names, page.rows[0].values, strict=True))
    assert shown["b"] is True and shown["f"] == 1.5 and shown["nan"] == "nan"
    assert (shown["i"], shown["l"], shown["n"]) == (str(2**53), '[1, {"a": "é"}]', None)
    assert page.rows[0].nested == [names.index("l")]
    assert page.rows[2].values[names.index("value")] == "?x"


def test_lines_that_cannot_be_read_are_rows_with_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    deep = "[" * 100_000
    many = "[" + ",".join(["[]"] * 300_000) + "]"
    long = b'"' + b"x" * (5 << 20) + b'"'
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a"\n\xff\n' + f"{deep}\n{many}\n".encode() + long + b'\n{"a": 2}\n')
    page = page_of(str(path))
    problems = [row.problem or "" for row in page.rows]
    assert problems[0] == problems[-1] == "" and page.rows[-1].values == [2]
    words = ["Expecting", "utf-8", "nested too deeply", "values, and a page reads", "more than 4 MB"]
    assert all(word in problem for word, problem in zip(words, problems[1:-1], strict=True)), problems


def test_restart_points_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page in the middle of a gzip file unpacks only from the nearest restart point."""
    monkeypatch.setattr(packed, "_POINT_BYTES", 1000)
    monkeypatch.setattr(packed, "_MAX_POINTS", 10)
    monkeypatch.setattr(packed, "_READ_BYTES", 500)
    monkeypatch.setattr(packed, "_OUT_BYTES", 700)
    monkeypatch.setattr(packed, "_TAIL_BYTES", 1500)
    content = random.Random(2).randbytes(60_000).hex().encode()
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(content[:50_000]) + b"\0" * 100 + gzip.compress(content[50_000:]) + b"\0" * 7)
    access = allowed(tmp_path)
    stored = access.stat(str(path))
    for seed in range(200):
        offset, count = random.Random(seed).randrange(120_000), random.Random(-seed).randrange(1, 5000)
        file, stream = packed.content_of(access, stored)
        file.seek(offset)
        assert file.read(count) == content[offset : offset + count], offset
        packed.release(file, stream)
    assert isinstance(stream, packed.GzipStream) and 5 < len(stream._points.all) <= 10


def test_replaced_packed_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    for number in range(3):
        path.write_bytes(gzip.compress(b'{"id": %d}\n' % number))
        os.utime(path, (number, number))
        assert ids(page_of(str(path))) == [number]


def test_cut_packed_file_shows_its_rows_and_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    WRITERS[path.name](path)
    path.write_bytes(path.read_bytes()[:-300])
    page = page_of(str(path), limit=1000)
    assert len(page.rows) > 10 and page.next is None
    assert "damaged, or still being written" in str(page.rows[-1].problem)
    path.write_bytes(b"hello")
    with pytest.raises(UnreadableError, match="damaged"):
        page_of(str(path))


def test_csv_values_may_have_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('a\tb\ta\n1\t"x\n""y"""\t3\n4\t5\n"' + "z" * 10 + "\n")
    page = page_of(str(path))
    assert [column.name for column in page.columns] == ["a", "b", "a (2)"]
    assert [row.values for row in page.rows][:2] == [["1", 'x\n"y"', "3"], ["4", "5", None]]
    assert ids_of_values(page_of(str(path), cursor=page.rows[1].at)) == ["4", "z" * 10 + "\n"]


def ids_of_values(page: RowPage) -> list[Any]:
    return [row.values[0] for row in page.rows]


def test_parquet_of_odd_types_and_names(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "time": pa.array([2**62], pa.timestamp("us")),
            "bytes": [b"\x00\xff"],
            "dict": pa.array(["x"]).dictionary_encode(),
            "struct": [{"a": [1]}],
            "date": pa.array([2**31 - 1], pa.date32()),
            "a.b": [1],
        }
    )
    parquet.write_table(table, path)
    values = page_of(str(path)).rows[0].values
    assert values[1:4] == ["00 ff", "x", '{"a": [1]}'] and values[5] == 1
    assert all(value is not None for value in values)


def test_parquet_that_is_none_is_reported(tmp_path: Path) -> None:
    whole = tmp_path / "a.parquet"
    WRITERS["a.parquet"](whole)
    content = whole.read_bytes()
    for bad in (b"", b"PAR1", content[:-10], content[:-8] + b"\xff\xff\xff\x7fPAR1", content[:500] + content[600:]):
        whole.write_bytes(bad)
        try:
            page_of(str(whole), limit=1000)
        except look.BrowsingError as error:
            assert str(whole) in str(error)
        assert look.describe(allowed(tmp_path), str(whole)).format == "parquet"


def test_formats_without_rows_or_numbers_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.jsonl").write_bytes(LINES)
    with pytest.raises(WrongKindError, match="has no rows"):
        page_of(str(tmp_path / "a.txt"))
    with pytest.raises(UnreadableError, match="no numbers"):
        page_of(str(tmp_path / "a.jsonl"), start=5)
    assert len(look.rows(Access(None), str(tmp_path / "a.jsonl"), start=0).rows) == 100


def test_rest_of_a_packed_file_is_indexed_between_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_POINT_BYTES", 500)
    monkeypatch.setattr(packed, "_READ_BYTES", 400)
    path = tmp_path / "a.jsonl.gz"
    WRITERS[path.name](path)
    first = page_of(str(path), limit=3)
    while packed.index_step():
        pass
    stream = packed._kept[str(path)][1]
    assert isinstance(stream, packed.GzipStream) and len(stream._points.all) > 5
    assert ids(page_of(str(path), cursor=first.next, limit=1000)) == list(range(3, 1000))
    assert not packed.index_step()
    assert len(LINES) - 3000 < stream.seek_fraction(0.97) < len(LINES)
