"""Cleaning: the texts it keeps, the files it writes, and equal output from every run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets.clean import CleanAndShardConfig, clean_and_shard, normalise, shard_of, split_of
from tradewind.datasets.documents import Document, write_document_file, write_documents


def text(name: str) -> str:
    return f"def {name}():\n    return {name!r}\n" * 5


def test_normalised_text_has_one_line_ending() -> None:
    assert normalise("\r\na\rb\r\n\n") == "a\nb\n"


def test_split_depends_on_id_and_has_its_share() -> None:
    ids = [f"module_{n}.py" for n in range(4000)]
    validation = sum(split_of(name, 0.25) == "validation" for name in ids)
    assert 850 < validation < 1150
    config = CleanAndShardConfig("in", "out", train_shards=3, validation_fraction=0.25)
    shards = {shard_of(name, config) for name in ids}
    assert shards == {f"train/shard-0000{n}.jsonl.gz" for n in range(3)} | {"validation/shard-00000.jsonl.gz"}


@pytest.mark.parametrize("setting", [{"train_shards": 0}, {"min_chars": 0}, {"validation_fraction": 1.0}])
def test_settings_out_of_range_refused(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        clean_and_shard(CleanAndShardConfig(str(tmp_path), str(tmp_path / "out"), **setting))


def test_input_without_documents_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documents under"):
        clean_and_shard(CleanAndShardConfig(str(tmp_path), str(tmp_path / "out")))


def test_empty_split_refused(tmp_path: Path) -> None:
    write_documents(str(tmp_path / "raw"), [Document(f"only{number}.py", text("only")) for number in range(2)])
    config = CleanAndShardConfig(str(tmp_path / "raw"), str(tmp_path / "out"), validation_fraction=1e-9)
    with pytest.raises(ValueError, match="The validation split of input_path .* would be empty: of 2 kept documents"):
        clean_and_shard(config)
    assert not (tmp_path / "out").exists()


def test_cleaning_keeps_good_rows_identically_anywhere(tmp_path: Path) -> None:
    """The expected bytes follow from the documents alone, so the order of tasks does not matter."""
    good = [Document(f"module_{n:03}.py", text(f"f{n}")) for n in range(60)]
    repeated = [Document("copy.py", good[3].text.replace("\n", "\r\n")), Document("zzz.py", good[4].text)]
    write_documents(str(tmp_path / "raw"), [*good, Document("short.py", "x = 1"), *repeated], documents_per_file=60)
    broken = [b"not json", b'{"id": "a.py"}', b'{"id": "b.py", "text": "' + b"y" * 99 + rb'\ud800"}', b"\xff\xfe"]
    with (tmp_path / "raw" / "part-00001.jsonl.gz").open("ab") as file:
        file.write(gzip.compress(b"\n".join(broken)))
    settings = {"input_path": str(tmp_path / "raw"), "output_path": str(tmp_path / "out"), "validation_fraction": 0.2}
    clean_and_shard(CleanAndShardConfig(**settings))

    kept = {document.id: document.text for document in good if document.id != "module_003.py"}
    kept["copy.py"] = good[3].text  # the filter keeps the smallest id of equal texts
    shards: dict[str, list[Document]] = {}
    for name, content in sorted(kept.items()):
        shards.setdefault(shard_of(name, CleanAndShardConfig(**settings)), []).append(Document(name, content))
    assert len(shards) == 3
    for shard, documents in shards.items():
        write_document_file(str(tmp_path / "expected" / shard), documents)
        assert (tmp_path / "out" / shard).read_bytes() == (tmp_path / "expected" / shard).read_bytes()
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    assert written == {*shards, "stats.json"}
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert stats["dropped"] == {"too_short": 1, "undecodable": 4, "duplicate": 2}
    assert (stats["kept"], stats["characters"]) == (len(kept), sum(map(len, kept.values())))
