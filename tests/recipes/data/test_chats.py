"""Chats become documents, and chats again."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.recipes.data.steps import check_snapshot, run
from tradewind.datasets import PipelineError
from tradewind.datasets.rows import RowError
from tradewind.recipes.data import chats_to_documents, documents_to_chats, normalize
from tradewind.recipes.data.chats import chat_text, messages_of
from tradewind.steps import ExperimentError
from tradewind.steps.resolution import resolve

HERE = Path(__file__).parent
CHATS = HERE / "chats"
LINES = st.sampled_from(
    [
        "",
        "### user",
        "\\### user",
        "\\\\### x",
        "###",
        "### ",
        "#### a",
        "a",
        "\r",
        "\x85",
        "\u2028### a",
        " ### a",
        "\\",
    ]
)
CONTENTS = st.one_of(st.lists(LINES, max_size=6).map("\n".join), st.text())
ROLES = st.sampled_from(["user", "assistant", "tool", "x-1"])


def chats_of(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob("*.gz") for line in gzip.decompress(file.read_bytes()).splitlines()]
    return sorted(map(json.loads, lines), key=lambda chat: str(chat["id"]))


def written(tmp_path: Path, *rows: Any) -> Path:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "in.jsonl"


def test_chats_become_documents_as_in_the_snapshot(tmp_path: Path) -> None:
    check_snapshot("chats", run(chats_to_documents("documents", CHATS), tmp_path), HERE)


def test_chats_survive_the_way_and_back(tmp_path: Path) -> None:
    there = chats_to_documents("there", CHATS, shards=3)
    expected = [json.loads(line) for line in (CHATS / "chats.jsonl").read_text().splitlines()]
    assert chats_of(run(documents_to_chats("back", there), tmp_path)) == expected[:2], "the third is a duplicate"


@given(st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENTS}), min_size=1, max_size=5))
def test_messages_of_any_content_survive(messages: list[dict[str, str]]) -> None:
    assert messages_of(chat_text(messages)) == messages


@given(st.one_of(CONTENTS, CONTENTS.map("### user\n{}".format)))
def test_texts_are_exact_chats_or_refused(text: str) -> None:
    try:
        messages = messages_of(text)
    except RowError:
        return
    assert chat_text(messages) == text


def test_chats_of_parquet_may_have_null_keys(tmp_path: Path) -> None:
    rows = [{"id": "1", "turns": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b", "name": None}]}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    there = chats_to_documents("there", tmp_path / "in.parquet", messages_field="turns", id_field="id", source="s")
    back = run(documents_to_chats("back", there, messages_field="turns"), tmp_path)
    assert chats_of(back) == [
        {"id": "1", "turns": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}
    ]
    (row,) = parquet.read_table(next(tmp_path.glob("there-*/part-*"))).to_pylist()
    assert (row["source_id"], row["source"], row["text"]) == ("1", "s", "### user\na\n\n### tool\nb")


OK = {"role": "user", "content": "x"}
BAD: dict[str, tuple[Any, str]] = {
    "no messages": ({"text": "x"}, "has no column 'messages': it has 'text'.*in.jsonl row 1"),
    "null": ({"messages": None}, "The messages are None: give a list of at least one"),
    "empty": ({"messages": []}, r"The messages are \[\]"),
    "a text": ({"messages": "x"}, "The messages are 'x'"),
    "texts": ({"messages": ["x"]}, r"messages\[0\] is 'x': give an object"),
    "no role": ({"messages": [OK, {"content": "x"}]}, r"messages\[1\] has no 'role': it has 'content'"),
    "no content": ({"messages": [{"role": "user", "content": None}]}, r"messages\[0\] has no 'content'"),
    "sharegpt": (
        {"messages": [{"from": "human", "value": "x"}]},
        r"\[0\] has no 'role': it has 'from', 'value'",
    ),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"messages\[0\] has the content \[{"),
    "calls": (
        {"messages": [{**OK, "tool_calls": [{}]}]},
        "has 'tool_calls', which a document cannot hold",
    ),
    "role of lines": ({"messages": [{"role": "a\nb", "content": "x"}]}, r"messages\[0\] has the role 'a\\nb'"),
    "role of blanks": ({"messages": [{"role": " ", "content": "x"}]}, "has the role ' '"),
    "role of number": ({"messages": [{"role": 1, "content": "x"}]}, "has the role 1"),
    "half a character": ({"messages": [{"role": "user", "content": "\ud83d"}]}, "surrogates not allowed"),
    "half in another": ({"messages": [OK], "url": "\ud83d"}, "surrogates not allowed"),
    "list as id": ({"messages": [OK], "id": [1]}, r"The id is \[1\]"),
    "no object": ("x", "it is 'x'"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_chats_are_refused(case: str, tmp_path: Path) -> None:
    row, message = BAD[case]
    with pytest.raises((PipelineError, ValueError), match=message):
        run(chats_to_documents("there", written(tmp_path, row)), tmp_path)
    assert not [*tmp_path.glob("there-*/*.parquet")]


@pytest.mark.parametrize(
    "text", ["x", "### user", "### user\nx\n### user\ny", "\n### user\nx", "### a b\nx", "### user\n\\x\n\n### ", "#"]
)
def test_documents_that_are_no_chats_are_refused(text: str, tmp_path: Path) -> None:
    documents = normalize("docs", written(tmp_path, {"text": text}))
    with pytest.raises(PipelineError, match="is no chat of the template 'headings-1': give documents that"):
        run(documents_to_chats("back", documents), tmp_path)


@pytest.mark.parametrize("metadata", ["{", "[1]", '{"messages": 1}', "[" * 100_000])
def test_metadata_that_no_chat_has_are_refused(metadata: str, tmp_path: Path) -> None:
    folder = run(normalize("docs", written(tmp_path, {"text": "### user\nx"})), tmp_path)
    file = next(folder.glob("part-*"))
    table = parquet.read_table(file)
    parquet.write_table(table.set_column(4, "metadata", pa.array([metadata])), file)
    with pytest.raises(PipelineError, match="The metadata of [0-9a-f]+ are"):
        run(documents_to_chats("back", folder), tmp_path)


def test_no_chats_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chats: there is no row"):
        run(chats_to_documents("there", written(tmp_path)), tmp_path)
    with pytest.raises(ValueError, match="chats: there is nothing at"):
        run(chats_to_documents("there", tmp_path / "gone"), tmp_path)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"chats": []}, "chats=[]: give a step"), ({"chats": 7}, "chats=7"), ({"messages_field": ""}, "messages_field=''"),
    ({"shards": 0}, "shards=0"), ({"source": 3}, "source=3"), ({"id_field": ""}, "id_field=''"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), ARGUMENTS)
def test_wrong_arguments_are_refused_with_step_and_field(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ExperimentError), match=re.escape(f"Step 'c': {message}")):
        chats_to_documents(**{"name": "c", "chats": "raw", **options})


def test_version_counts_arguments() -> None:
    def version(**options: Any) -> str:
        step = chats_to_documents("c", options.pop("chats", "raw"), **options)
        return resolve([step], "/p").of(step).hash

    others = [{"chats": "other"}, {"messages_field": "b"}, {"id_field": "b"}, {"source": "b"}, {"shards": 2}]
    assert len({version(**each) for each in [{}, *others]}) == 6
    assert version() == version(max_parallelism=3)
