"""Rows of files become a set of documents."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.data.steps import check_snapshot, run
from tradewind.datasets import PipelineError
from tradewind.recipes.data import normalize
from tradewind.steps import ExperimentError
from tradewind.steps.resolution import resolve

INPUTS = Path(__file__).parent / "inputs"


def test_rows_become_documents_as_in_the_snapshot(tmp_path: Path) -> None:
    step = normalize("docs", [f"{INPUTS}/wiki.jsonl", f"{INPUTS}/web.jsonl"], shards=3)
    check_snapshot("normalize", run(step, tmp_path), INPUTS)


def test_second_attempt_keeps_shards_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = normalize("docs", INPUTS, shards=2)
    folder = run(step, tmp_path)
    made = {file: file.stat().st_mtime_ns for file in folder.glob("*.parquet")}
    provenance = (folder / "provenance.json").read_text()
    (folder / "provenance.json").unlink()
    capsys.readouterr()
    assert run(step, tmp_path) == folder
    assert "Nothing to do: all 2 shards" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in folder.glob("*.parquet")} == made
    assert (folder / "provenance.json").read_text() == provenance


ROWS = {
    "no text column": (
        [{"body": "x"}],
        {},
        "has no column 'text': it has 'body'.*in.jsonl row 1",
    ),
    "no id column": ([{"text": "x"}], {"id_field": "url"}, "has no column 'url': it has 'text'"),
    "number as text": ([{"text": "x"}, {"text": 12}], {}, "The column 'text' is 12: .*in.jsonl row 2"),
    "list as id": ([{"text": "x", "id": [1]}], {}, r"The id is \[1\]"),
    "half a character": ([{"text": "\ud83d"}], {}, "surrogates not allowed"),
    "half in another": ([{"text": "x", "url": "\ud83d"}], {}, "surrogates not allowed"),
    "half in the id": ([{"text": "x", "id": "\ud83d"}], {}, "surrogates not allowed"),
    "no object": (["x"], {}, "it is 'x'"),
    "only blank": ([{"text": " "}, {"text": None}], {}, "documents: of 2 rows none has a text in the column 'text'"),
}


@pytest.mark.parametrize("case", ROWS)
def test_unusable_rows_are_refused(case: str, tmp_path: Path) -> None:
    rows, options, message = ROWS[case]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises((PipelineError, ValueError), match=message):
        run(normalize("docs", tmp_path / "in.jsonl", **options), tmp_path)
    assert not [*tmp_path.glob("docs-*/*.parquet")] or case == "only blank"


def test_rejected_rows_are_counted_and_others_kept(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n{"text": "a"}\n{"te')
    folder = run(normalize("docs", tmp_path / "in.jsonl", on_error="skip"), tmp_path)
    assert json.loads((folder / "provenance.json").read_text())["counts"] == {
        "rows": 4, "without_text": 0, "rejected": 2, "duplicates": 1, "documents": 1,
    }  # fmt: skip


ARGUMENTS = {
    "documents": ({"documents": []}, "documents="),
    "a number": ({"documents": 7}, "documents=7: give a step"),
    "text_field": ({"text_field": ""}, "text_field=''"),
    "shards": ({"shards": 0}, "shards=0: give a whole number of at least 1"),
    "source": ({"source": 3}, "source=3"),
    "unknown": ({"shard": 3}, "shard"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments_are_refused_with_step_and_field(case: str) -> None:
    options, message = ARGUMENTS[case]
    with pytest.raises((ValueError, ExperimentError, TypeError), match=re.escape(message)):
        normalize(**{"name": "docs", "documents": "raw", **options})


def test_version_counts_arguments_but_no_parallelism() -> None:
    def version(**options: Any) -> str:
        step = normalize("docs", options.pop("documents", "raw"), **options)
        return resolve([step], "/p").of(step).hash

    assert version() == version(max_parallelism=3, memory="4GB")
    others = [{"documents": "other"}, {"text_field": "b"}, {"id_field": "b"}, {"source": "b"}, {"shards": 2}]
    assert len({version(**each) for each in [{}, *others]}) == 6


def test_folder_without_files_is_refused_by_name(tmp_path: Path) -> None:
    shutil.copy(INPUTS / "web.jsonl", tmp_path / "notes.md")
    with pytest.raises(ValueError, match="documents: .* holds no file"):
        run(normalize("docs", tmp_path), tmp_path / "out")
