"""Pages of WARC files, archives and tables become documents; what no extractor can read is counted."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.datasets.warcs import record, response
from tests.recipes.data.steps import check_snapshot, run
from tests.support.waiting import until
from tradewind.datasets import PipelineError
from tradewind.recipes.data import Markdownify, Resiliparse, Trafilatura, html_to_text, normalize
from tradewind.recipes.data.html import extraction
from tradewind.recipes.data.html.extraction import ExtractionError, ExtractorProcess
from tradewind.recipes.data.html.pages import decoded_html
from tradewind.steps import ExperimentError, resolve

ROOT = Path(__file__).parents[3]
INPUTS = Path(__file__).parent / "inputs" / "pages"
MAIN = "<p>A sentence of a page that is long enough to be its text.</p>" * 5
PAGE = f"<html><title>A page</title><nav><a href='/'>Home</a></nav><main>{MAIN}</main></html>"
CRAWLED = {"article": "utf-8", "forum": "latin-1", "haiku": "shift_jis"}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in sorted(folder.glob("part-*")) for line in gzip.open(file, "rt", encoding="utf-8")
    ]


def counts_of(folder: Path) -> dict[str, int]:
    counts = json.loads((folder / "stats.json").read_text())["counts"]
    return {name: count for name, count in counts.items() if count}


def answer(body: bytes, content_type: str = "text/html", url: str = "http://a.org/1", status: str = "200 OK") -> bytes:
    return record(f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n\r\n".encode() + body, url)


EXTRACTORS = {
    "resiliparse": Resiliparse(),
    "resiliparse_all": Resiliparse(
        main_content=False, links=True, alt_texts=True, form_fields=True, noscript=True, skip_elements=["pre"]
    ),
    "trafilatura": Trafilatura(),
    "trafilatura_links": Trafilatura(include_links=True, include_formatting=True, include_comments=True),
    "markdownify": Markdownify(),
    "markdownify_plain": Markdownify(include_images=False, include_links=False, heading_style="UNDERLINED"),
}


@pytest.mark.parametrize("name", EXTRACTORS)
def test_texts_of_pages_are_those_of_the_snapshot(tmp_path: Path, name: str) -> None:
    """The article is in UTF-8, as an answer's header says; the others say so in ``meta``, or nowhere."""
    extractor = EXTRACTORS[name]
    (tmp_path / "texts").mkdir()
    for page, encoding in CRAWLED.items():
        html = (INPUTS / f"{page}.html").read_text().encode(encoding)
        html_text = decoded_html(html, "text/html; charset=utf-8" if page == "article" else None)
        text = extraction.EXTRACTORS[name.partition("_")[0]](html_text, vars(extractor))
        (tmp_path / "texts" / page).write_text(text.strip() + "\n")
    check_snapshot(f"html_{name}", tmp_path / "texts", INPUTS)


def jsonl(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(folder: Path) -> None:
    rows = [{"url": "u", "raw": PAGE.encode("utf-16"), "id": 7}, {"url": "v", "raw": None, "id": 8}]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")


def as_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("x/a.html", PAGE)
        archive.writestr("x/b.txt", PAGE)
        archive.writestr("../c.HTM", PAGE.encode("utf-16"))


def as_crawl(folder: Path) -> None:
    """Write a crawl with a file about it, and answers that are no page."""
    others = [
        answer(b"gone", status="404 No"), answer(b"PNG", "image/png"), answer(b" "), answer(b"x", "text/plain"),
        answer(b"\x89PNG", ""), answer(PAGE.encode(), ""), record(PAGE.encode(), kind="resource"),
        response(b"\1\2", "Content-Encoding: gzip"),
    ]  # fmt: skip
    (folder / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, [answer(PAGE.encode()), *others])))
    (folder / "log.jsonl").write_bytes(jsonl({"address": "http://a.org"}))


KINDS: dict[str, tuple[Any, dict[str, Any], list[str | None], dict[str, int]]] = {
    "parquet": (as_parquet, {"html_field": "raw"}, ["7"], {"documents": 1, "without_text": 1}),
    "zip": (as_zip, {"members": "*.[hH]*"}, ["x/a.html", "../c.HTM"], {"documents": 2}),
    "crawl": (
        as_crawl, {}, ["urn:uuid:1"] * 2,
        {"documents": 2, "without_text": 1, "other_status": 1, "other_type": 4, "rejected": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS)
def test_pages_are_found_in_each_kind_of_file(tmp_path: Path, case: str) -> None:
    write, options, ids, counts = KINDS[case]
    write(tmp_path)
    folder = run(html_to_text("texts", tmp_path, source="web", **options), tmp_path / "out")
    rows = rows_of(folder)
    assert [row.get("id") for row in rows] == ids
    assert {row["source"] for row in rows} == {"web"}
    assert all(row["text"].startswith("A page") for row in rows)
    assert counts_of(folder) == counts


GREETING = "<p>Grüße aus Köln – für 5 €"
CYRILLIC = "<p>Съешь ещё этих мягких французских булок, да выпей чаю"
META = "<meta charset=windows-1251>"

ENCODINGS: list[tuple[bytes, str | None, str]] = [
    (GREETING.encode(), None, GREETING),
    (GREETING.encode("cp1252"), None, GREETING),
    (GREETING.encode("cp1252"), "text/html; charset=iso-8859-1", GREETING),
    (GREETING.encode("cp1252"), "text/html; charset=utf-8", GREETING),
    (GREETING.encode(), "text/html; charset=foo", GREETING),
    (GREETING.encode(), "text/html; charset=base64", GREETING),
    (GREETING.encode("utf-16"), "text/html; charset=utf-8", GREETING),
    (b"\xef\xbb\xbf" + GREETING.encode(), 'text/html;charset="latin-1"', GREETING),
    (b"\xfe\xff" + GREETING.encode("utf-16-be"), None, GREETING),
    ((META + CYRILLIC).encode("cp1251"), None, META + CYRILLIC),
    (CYRILLIC.encode("koi8-r"), "text/html; charset=KOI8-R", CYRILLIC),
    (CYRILLIC.encode("koi8-r"), None, CYRILLIC),
    ("<p>日本語のページ".encode("euc-jp"), "text/html; charset=euc-jp", "<p>日本語のページ"),
    (("中文网页" * 9).encode("gb18030"), "text/html; charset=gb2312", "中文网页" * 9),
    (CYRILLIC.encode()[:-1], "text/html; charset=utf-8", CYRILLIC[:-1] + "\ufffd"),
    ((CYRILLIC * 3).encode() + b"\xff", None, CYRILLIC * 3 + "\ufffd"),
    (b"a\0b", None, "ab"),
    (b"", None, ""),
]


@pytest.mark.parametrize("number", range(len(ENCODINGS)))
def test_encoding_is_that_of_mark_header_meta_or_guess(number: int) -> None:
    html, content_type, text = ENCODINGS[number]
    assert decoded_html(html, content_type) == text


GOOD = {"url": "http://a.org/1", "html": PAGE, "lang": "en", "metadata": {"rank": 1}, "source": "mine"}

BAD_ROWS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no column": ({"url": "u"}, {}, "has no column 'html': it has 'url'"),
    "no object": ("x", {}, "it is 'x'"),
    "number": ({"html": 3}, {}, "The column 'html' is 3: give the column of the HTML"),
    "no id": ({"html": PAGE}, {"id_field": "name"}, "has no column 'name'"),
    "large": ({"html": PAGE * 9, "url": "u"}, {"max_page_bytes": 999}, "The page 'u' has more than 999 bytes"),
}
LARGE_TEXT = {"html": "<ul><li>" * 99 + "<li>x" * 9}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_page_is_told_with_file_and_row(tmp_path: Path, case: str) -> None:
    row, options, told = BAD_ROWS[case]
    (tmp_path / "a.jsonl").write_bytes(jsonl(row, GOOD))
    with pytest.raises(PipelineError, match=re.escape(told)) as raised:
        run(html_to_text("texts", tmp_path / "a.jsonl", on_error="raise", **options), tmp_path)
    assert "a.jsonl row 1" in str(raised.value)


def test_bad_pages_are_counted_and_others_become_a_set(tmp_path: Path) -> None:
    bad = [row for row, options, _ in BAD_ROWS.values() if not options]
    (tmp_path / "a.jsonl").write_bytes(jsonl(*bad, LARGE_TEXT, GOOD))
    options = {"max_page_bytes": 999, "extractor": Resiliparse(main_content=False)}
    texts = html_to_text("texts", tmp_path / "a.jsonl", **options)
    folder = run(normalize("docs", texts), tmp_path)
    (document,) = parquet.read_table(folder / "part-00000-of-00001.parquet").to_pylist()
    assert document["text"].startswith("A page\n\nHome\n\nA sentence of")
    assert (document["source_id"], document["source"]) == ("http://a.org/1", "mine")
    assert json.loads(document["metadata"]) == {"url": "http://a.org/1", "lang": "en", "rank": 1}
    assert counts_of(run(texts, tmp_path)) == {"documents": 1, "rejected": 4}


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"extractor": "resilparse"}, "extractor='resilparse': did you mean 'resiliparse'?"),
    "no extractor": ({"extractor": None}, "extractor=None: there are resiliparse, trafilatura, markdownify."),
    "unknown option": (
        {"extractor": {"extractor": "trafilatura", "links": True}},
        "Extractor trafilatura has no option 'links': there are include_comments, ",
    ),
    "option of a class": ({"extractor": {"extractor": "resiliparse", "links": 1}}, "links=1: give True or False"),
    "elements": (
        {"extractor": {"extractor": "resiliparse", "skip_elements": "pre"}},
        "skip_elements='pre': give a list",
    ),
    "style": ({"extractor": {"extractor": "markdownify", "heading_style": "atx"}}, "heading_style='atx': give one of"),
    "both": (
        {"extractor": {"extractor": "trafilatura", "favor_precision": True, "favor_recall": True}},
        "give only one of favor_precision and favor_recall",
    ),
    "no pages": ({"pages": []}, "pages=[]: give a step"),
    "bytes": ({"max_page_bytes": 0}, "max_page_bytes=0: give a whole number from 1"),
    "more bytes": ({"max_page_bytes": 1 << 30}, "max_page_bytes=1073741824: give a whole number from 1"),
    "seconds": ({"max_page_seconds": 0.5}, "max_page_seconds=0.5: give a whole number of at least 1"),
    "field": ({"html_field": ""}, "html_field=''"),
    "other": ({"html_column": "html"}, "html_column"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments_are_refused_with_step_and_field(case: str) -> None:
    options, told = ARGUMENTS[case]
    with pytest.raises((ValueError, TypeError, ExperimentError), match=re.escape(told)):
        html_to_text(**{"name": "texts", "pages": "raw", **options})


def test_version_counts_what_decides_texts() -> None:
    def version(**options: Any) -> str:
        step = html_to_text("texts", options.pop("pages", "raw"), **options)
        return resolve([step], "/p").of(step).hash

    same = [{}, {"max_parallelism": 3}, {"on_error": "raise"}, {"extractor": Resiliparse()}]
    assert len({version(**each) for each in same}) == 1
    others: list[dict[str, Any]] = [
        {"pages": "other"}, {"extractor": "trafilatura"}, {"extractor": Resiliparse(links=True)}, {"html_field": "b"},
        {"id_field": "b"}, {"url_field": "b"}, {"members": "*"}, {"source": "b"}, {"max_page_bytes": 9},
        {"max_page_seconds": 9},
    ]  # fmt: skip
    assert len({version(**each) for each in [{}, *others]}) == len(others) + 1


FILES: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    "nothing": ({"a.html": PAGE.encode()}, {}, "pages: .* holds no file that can be read"),
    "two kinds": ({"a.zip": b"", "b.jsonl": b""}, {}, "a.zip and .*b.jsonl are zip archives and tables: give a glob"),
    "no text": (
        {"a.jsonl": jsonl({"html": ""}, {"html": " \0"})},
        {},
        r"no page has a text \(without_text 2\)",
    ),
    "only errors": ({"a.jsonl": jsonl({"text": PAGE})}, {}, "has no column 'html': it has 'text'"),
    "no rows": ({"a.warc": b""}, {}, r"no page has a text \(there is none\)"),
    "damaged": ({"a.warc": b"hello\n" * 99}, {}, "a.warc cannot be read on after row 0"),
    "damaged archive": ({"a.zip": b"PK"}, {}, "a.zip cannot be read on"),
}


@pytest.mark.parametrize("case", FILES)
def test_unusable_files_are_refused_by_name(tmp_path: Path, case: str) -> None:
    files, options, told = FILES[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, PipelineError), match=told):
        run(html_to_text("texts", tmp_path, **options), tmp_path / "out")


NESTED = b"<div>" * 60_000
"""It takes minutes."""


def process_for(extractor: Any, max_cpu_seconds: int) -> ExtractorProcess:
    return ExtractorProcess(extractor.name, vars(extractor), max_cpu_seconds, 5_000_000)


@pytest.mark.slow
def test_kernel_ends_process_of_page_beyond_limits() -> None:
    with process_for(Resiliparse(), 1) as process:
        assert "A sentence" in process.text_of(PAGE.encode())
        (child,) = [each for each in psutil.Process().children() if "html/extraction" in " ".join(each.cmdline())]
        assert child.rlimit(psutil.RLIMIT_AS)[0] == extraction.MAX_MEMORY_BYTES
        with pytest.raises(ExtractionError, match="took more than 1 s of CPU time"):
            process.text_of(NESTED)
        assert not child.is_running()
        assert "A sentence" in process.text_of(PAGE.encode())


@pytest.mark.long
def test_page_is_read_again_when_its_process_is_killed() -> None:
    with process_for(Resiliparse(), 9) as process:
        for _ in range(2):
            assert "A sentence" in process.text_of(PAGE.encode())
            (child,) = [each for each in psutil.Process().children() if "html/extraction" in " ".join(each.cmdline())]
            child.kill()


HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "indented lists": (Resiliparse(main_content=False), b"<ul><li>x" * 8_000, "its text has [0-9,]{10} bytes"),
    "nested lists": (
        Resiliparse(main_content=False),
        b"<ul><li>x" * 60_000,
        "want of memory|CPU time",
    ),
    "nested": (Markdownify(), NESTED, "RecursionError"),
    "cells": (Trafilatura(), b"<html><table><tr>" + b"<td>a" * 60_000, "CPU time"),
    "blanks": (Markdownify(), b"<p>a" + b" " * 300_000 + b"b", "CPU time"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_page_fails_and_others_have_texts(case: str) -> None:
    extractor, html, told = HOSTILE[case]
    with process_for(extractor, 3) as process:
        with pytest.raises(ExtractionError, match=told):
            process.text_of(html)
        assert "A sentence" in process.text_of(PAGE.encode())


ABSURD = [
    b"<" * 100_000, b"&" * 100_000, b"&#0;&#xD800;&#x110000;&nope;" * 9, b"<!--" * 9999, b"<![CDATA[" * 99,
    b"<p title='" + b"x" * 200_000, b"<table><tr><td>" * 99, b"<select><option>" * 99, b"<svg><math>" * 99,
    b"<script>" * 99, b"<plaintext>" * 99, b"<a><p>" * 99, "<p>\u202e\ufeff\ue000\U0010ffff".encode(), b"\x01\x1b[31m",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("extractor", [Resiliparse(), Trafilatura(), Markdownify()], ids=lambda each: each.name)
def test_absurd_pages_end_no_process(extractor: Any) -> None:
    with process_for(extractor, 20) as process:
        process.text_of(PAGE.encode())
        (child,) = [each for each in psutil.Process().children() if "html/extraction" in " ".join(each.cmdline())]
        for html in ABSURD:
            with suppress(ExtractionError):
                process.text_of(html).encode()
        assert child.is_running()


USES_ONE = """
from tests.recipes.data.test_html_text import NESTED, Resiliparse, process_for
process = process_for(Resiliparse(), 60)
process.text_of(b"<p>a")
print(process._process.pid, flush=True)
process.text_of(NESTED)
"""


@pytest.mark.long
def test_process_ends_with_its_killed_user_within_a_page() -> None:
    with subprocess.Popen([sys.executable, "-c", USES_ONE], stdout=subprocess.PIPE, cwd=ROOT) as user:
        assert user.stdout is not None
        child = psutil.Process(int(user.stdout.readline()))
        user.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
