"""Cleaning: what is kept, where it goes, and that it is always the same."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tradewind.datasets.clean import CleanAndShardConfig, clean_and_shard, normalise, shard_of, split_of
from tradewind.datasets.documents import Document, read_documents, write_documents

RUN = """
import json, sys
import ray
from tradewind.datasets.clean import CleanAndShardConfig, clean_and_shard
ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False)
for settings in json.loads(sys.argv[2]):
    clean_and_shard(CleanAndShardConfig(**settings))
"""


def text(name: str) -> str:
    return f"def {name}():\n    return {name!r}\n" * 5


def run_clean(home: Path, num_cpus: int, *settings: dict[str, Any]) -> str:
    """What it printed, errors included."""
    env = os.environ | {"HOME": str(home), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", RUN, str(num_cpus), json.dumps(settings)]
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_normalised_text_has_one_kind_of_line_end() -> None:
    assert normalise("\r\na\rb\r\n\n") == "a\nb\n"


def test_the_split_follows_the_id_alone_and_takes_its_share() -> None:
    ids = [f"module_{n}.py" for n in range(4000)]
    validation = sum(split_of(name, 0.25) == "validation" for name in ids)
    assert 850 < validation < 1150
    config = CleanAndShardConfig("in", "out", train_shards=3, validation_fraction=0.25)
    shards = {shard_of(name, config) for name in ids}
    assert shards == {f"train/shard-0000{n}.jsonl.gz" for n in range(3)} | {"validation/shard-00000.jsonl.gz"}


@pytest.mark.parametrize("setting", [{"train_shards": 0}, {"min_chars": 0}, {"validation_fraction": 1.0}])
def test_settings_out_of_range_are_named(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        clean_and_shard(CleanAndShardConfig(str(tmp_path), str(tmp_path / "out"), **setting))


def test_an_input_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documents under"):
        clean_and_shard(CleanAndShardConfig(str(tmp_path), str(tmp_path / "out")))


@pytest.mark.slow
@pytest.mark.ray
def test_cleaning_keeps_what_is_good_and_gives_the_same_bytes_whatever_the_cluster(tmp_path: Path) -> None:
    good = [Document(f"module_{n:03}.py", text(f"f{n}")) for n in range(60)]
    repeated = [Document("copy.py", good[3].text.replace("\n", "\r\n")), Document("zzz.py", good[4].text)]
    write_documents(str(tmp_path / "raw"), [*good, Document("short.py", "x = 1"), *repeated], documents_per_file=20)
    broken = [b"not json", b'{"id": "a.py"}', b'{"id": "b.py", "text": "' + b"y" * 99 + rb'\ud800"}', b"\xff\xfe"]
    (tmp_path / "raw" / "part-99999.jsonl.gz").write_bytes(gzip.compress(b"\n".join(broken)))
    first, second = (
        {"input_path": str(tmp_path / "raw"), "output_path": str(tmp_path / name), "validation_fraction": 0.2}
        for name in "ab"
    )
    printed = run_clean(tmp_path, 1, first)
    assert "Progress bars disabled" not in printed, "nobody who reads a step's log has asked for any"
    run_clean(tmp_path, 2, second)

    stats = json.loads((tmp_path / "a" / "stats.json").read_text())
    assert stats["dropped"] == {"too_short": 1, "undecodable": 4, "duplicate": 2}
    kept = {document.id: document.text for document in read_documents(str(tmp_path / "a"))}
    expected = {document.id: document.text for document in good if document.id != "module_003.py"}
    assert kept == expected | {"copy.py": good[3].text}  # of equal texts the smallest id stays
    assert stats["characters"] == sum(map(len, kept.values()))
    validation = {document.id for document in read_documents(str(tmp_path / "a" / "validation"))}
    assert validation == {name for name in kept if split_of(name, 0.2) == "validation"}
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert len(files) == 4
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.ray
def test_a_split_that_would_be_empty_is_refused(tmp_path: Path) -> None:
    write_documents(str(tmp_path / "raw"), [Document("only.py", text("only"))])
    with pytest.raises(AssertionError, match="The validation split of input_path .* would be empty"):
        run_clean(tmp_path, 1, {"input_path": str(tmp_path / "raw"), "output_path": str(tmp_path / "out")})
    assert not (tmp_path / "out").exists()
