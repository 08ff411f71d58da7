"""Pages of WARC files, archives and tables become documents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.recipes.data.steps import run
from tradewind.recipes.data import html_to_text, normalize

MAIN = "<p>A sentence of a page that is long enough to be its text.</p>" * 5
PAGE = f"<html><title>A page</title><nav><a href='/'>Home</a></nav><main>{MAIN}</main></html>"


def rows_of(folder: Path) -> list[dict[str, object]]:
    return [
        json.loads(line) for file in sorted(folder.glob("part-*")) for line in gzip.open(file, "rt", encoding="utf-8")
    ]


def test_texts_are_documents_that_normalize_reads(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"url": "http://a.org/1", "html": PAGE, "lang": "en"}) + "\n")
    texts = html_to_text("texts", tmp_path / "a.jsonl")
    (row,) = rows_of(run(texts, tmp_path))
    assert (row["id"], row["url"], row["metadata"]) == ("http://a.org/1", "http://a.org/1", {"lang": "en"})
    counts = json.loads((run(normalize("docs", texts), tmp_path) / "provenance.json").read_text())["counts"]
    assert counts["documents"] == 1
