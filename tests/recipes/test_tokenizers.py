"""A training reads a bucket's tokenizer from a local folder, one folder per tokenizer."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from tradewind.datasets.tokenizer_files import local_tokenizer
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

FILES = {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"eos_token": "end"}'}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def write(path: str, **changed: bytes) -> str:
    """Write a tokenizer; return its path."""
    for name, data in {**FILES, **{f"{key}.json": value for key, value in changed.items()}}.items():
        with fsspec.open(f"{path}/{name}", "wb") as file:
            file.write(data)
    return path


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_same_tokenizer_content_gives_same_local_folder(cloud: LocalCloudStorage, temporary: Path) -> None:
    first = local_tokenizer(write("gs://bucket/a"))
    assert contents(first) == FILES and [str(path) for path in temporary.iterdir()] == [first]
    assert local_tokenizer("gs://bucket/a") == local_tokenizer(write("gs://bucket/b")) == first
    assert local_tokenizer(write("gs://bucket/c", tokenizer=b"[]")) != first


@pytest.mark.parametrize("changed", ["tokenizer.json", "chat_template.jinja"])
def test_local_folder_with_changed_or_added_file_is_not_used(cloud: LocalCloudStorage, changed: str) -> None:
    first = local_tokenizer(write("gs://bucket/d"))
    Path(first, changed).write_text("another's")
    other = local_tokenizer("gs://bucket/d")
    assert other != first and contents(other) == FILES


def test_weights_beside_tokenizer_are_not_read(cloud: LocalCloudStorage) -> None:
    write("gs://bucket/model")
    for name in ("model.safetensors", "original/tokenizer.json"):
        with fsspec.open(f"gs://bucket/model/{name}", "wb") as file:
            file.write(b"large")
    assert contents(local_tokenizer("gs://bucket/model")) == FILES


def test_local_tokenizer_is_used_in_place(temporary: Path) -> None:
    path = temporary / "mine"
    path.mkdir()
    with pytest.raises(ValueError, match="There is no tokenizer under tokenizer_path .*tokenizer.json is missing"):
        local_tokenizer(str(path))
    assert local_tokenizer(write(str(path))) == str(path)
