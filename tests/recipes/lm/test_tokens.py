"""Steps that tokenize files: what counts in their versions, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tradewind import ExecutorStep, lazy
from tradewind.datasets.tokenization import TokenizeFilesConfig, tokenize
from tradewind.recipes.downloads import download
from tradewind.recipes.lm.tokens import tokenize_files
from tradewind.steps import resolve, this_output_path

WORDS = download("raw/words", ["https://a.example/x.jsonl"])


def version(step: ExecutorStep) -> Any:
    return resolve([step], "/prefix").steps[-1].version


def test_paths_tokenizer_and_format_count() -> None:
    chats, turns, ready = (
        lazy(f"levanter.data.text:{name}LmDatasetFormat", **fields)
        for name, fields in (("Chat", {}), ("Chat", {"messages_field": "turns"}), ("Prebuilt", {}))
    )
    given: dict[str, Any] = {"train_paths": [WORDS, "b/c"], "tokenizer": "owner/name", "validation_paths": ["/d"]}
    changes: list[dict[str, Any]] = [
        {},
        {"train_paths": [WORDS, "b/other"]},
        {"train_paths": [WORDS / "x", "b/c"]},
        {"tokenizer": "owner/other"},
        {"validation_paths": ["/e"]},
        {"text_key": "content"},
        {"sample_count": 9},
        *({"format": each} for each in (chats, turns, ready)),
    ]
    versions = {json.dumps(version(tokenize_files("a", **given | change))) for change in changes}
    assert len(versions) == len(changes)


def test_tokenization_step_resumes_from_all_files() -> None:
    made = tokenize_files("tokenized/words", [], "owner/name", [WORDS])
    assert (made.name, made.fn, made.resumable) == ("tokenized/words", tokenize, ("**",))
    assert made.config == TokenizeFilesConfig([], [WORDS.as_input_name()], this_output_path(), made.config.tokenizer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tokenize_files("a", [], "t"), "Step 'a': train_paths and validation_paths are empty"),
        (lambda: tokenize_files("a", "b", "t"), "Step 'a': train_paths='b': give a list of steps"),
        (lambda: tokenize_files("a", [3], "t"), "train_paths holds 3: give steps"),
        (lambda: tokenize_files("a", ["b"], ""), "tokenizer=''"),
        (lambda: tokenize_files("a", ["b"], 3), "tokenizer=3"),
        (lambda: tokenize_files("a", ["b"], "t", text_key=""), "text_key=''"),
        (lambda: tokenize_files("a", ["b"], "t", sample_count=0), "sample_count=0: give a whole number of at least"),
        (lambda: tokenize_files("a", [WORDS / "test/x.jsonl", "a/test.jsonl"], "t"), "a/test.jsonl looks like test"),
        (lambda: tokenize_files("a", [WORDS / "validation"], "t"), "Step 'a': train_paths: validation looks"),
    ],
)
def test_invalid_tokenization_refused_with_step_and_field(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
