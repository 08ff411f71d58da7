"""Tokenizers without a table entry come from the Hugging Face cache that the user names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.marin.checkouts import put
from tradewind.marin.legacy import modules
from tradewind.marin.legacy.tokenizers import ExperimentError

TOKENIZER = {
    "model": {"vocab": {"a": 0, "b": 1, "<s>": 2}},
    "added_tokens": [{"id": 2, "content": "<s>"}, {"id": 3, "content": "<x>"}],
}
CONFIG = {
    "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "pad_token": None,
    "added_tokens_decoder": {"4": {"content": "<y>"}}, "additional_special_tokens": ["<x>"],
}  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a cache with one tokenizer, which ``HF_HUB_CACHE`` names."""
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    model = tmp_path / "hub/models--org--small"
    put(model / "snapshots/abc/tokenizer.json", json.dumps(TOKENIZER))
    put(model / "snapshots/abc/tokenizer_config.json", json.dumps(CONFIG))
    put(model / "refs/main", "abc\n")
    put(model / "refs/v1.2", "abc")
    return tmp_path / "hub"


def load(name: str, **given: Any) -> Any:
    return modules()["levanter.compat.hf_checkpoints"].load_tokenizer(name, **given)


@pytest.mark.parametrize("given", [{}, {"revision": "v1.2"}, {"revision": "abc"}, {"revision": "main"}])
@pytest.mark.usefixtures("cache")
def test_both_sizes_are_those_of_the_files(given: dict[str, str]) -> None:
    assert (load("org/small", **given).vocab_size, len(load("org/small", **given))) == (3, 6)


def test_the_cache_may_be_in_the_home_that_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(cache.parent))
    assert load("org/small").vocab_size == 3


def test_a_vocabulary_may_be_a_list_of_tokens_with_scores(cache: Path) -> None:
    listed = {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}
    put(cache / "models--org--small/snapshots/abc/tokenizer.json", json.dumps(listed))
    assert (load("org/small").vocab_size, len(load("org/small"))) == (2, 6)


@pytest.mark.parametrize(
    ("name", "revision"),
    [("org/other", None), ("org/small", "v3"), ("../hub/x", None), ("org/small", "../snapshots/abc"), ("/etc", None)],
)
@pytest.mark.usefixtures("cache")
def test_tokenizer_missing_in_cache_is_refused(name: str, revision: str | None) -> None:
    with pytest.raises(ExperimentError, match="are unknown, and nothing is downloaded .*set HF_HUB_CACHE there"):
        load(name, revision=revision)


def test_cache_without_a_variable_is_not_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HOME", str(cache.parent))
    put(cache.parent / ".cache/huggingface/hub/models--org--small/refs/main", "abc")
    with pytest.raises(ExperimentError, match="are unknown"):
        load("org/small")


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {}}, "added_tokens": [1]}', "[" * 100_000, None],
    ids=lambda text: str(text)[:30],
)
def test_invalid_tokenizer_file_is_named(cache: Path, text: str | None) -> None:
    file = cache / "models--org--small/snapshots/abc/tokenizer.json"
    file.unlink()
    os.mkfifo(file) if text is None else put(file, text)
    with pytest.raises(ExperimentError, match=r"The tokenizer org/small in .*models--org--small cannot be read"):
        load("org/small")
