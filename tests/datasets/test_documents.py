"""Document collections and the files that hold them."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from tradewind.datasets import Dataset, create_backend
from tradewind.datasets.documents import Document, document_files, read_documents, write_documents
from tradewind.datasets.files import atomic_writer, join, read_text, remove_unfinished, write_text
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest
from tradewind.storage.trees import list_files

DOCUMENTS = [Document(f"file-{n}.py", f"value = {n}\nname = 'Zoë'\n") for n in range(7)]


def test_documents_are_written_alike_and_read_in_order(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert write_documents(str(tmp_path / name), iter(DOCUMENTS), documents_per_file=3) == 7
        assert list(read_documents(str(tmp_path / name))) == DOCUMENTS
    one, two = ([Path(file).read_bytes() for file in document_files(str(tmp_path / name))] for name in ("one", "two"))
    assert one == two and len(one) == 3


def test_second_attempt_removes_files_of_first(tmp_path: Path) -> None:
    write_documents(str(tmp_path), DOCUMENTS, documents_per_file=1)
    write_documents(str(tmp_path), DOCUMENTS[:2], documents_per_file=1)
    assert list(read_documents(str(tmp_path))) == DOCUMENTS[:2]


def test_collection_includes_subfolders_on_object_store() -> None:
    folder = "memory:///test-documents/raw"
    write_documents(f"{folder}/train", DOCUMENTS[:4])
    write_documents(f"{folder}/validation", DOCUMENTS[4:])
    assert document_files(folder)[0] == f"{folder}/train/part-00000.jsonl.gz"
    assert list(read_documents(folder)) == DOCUMENTS


def test_set_in_parquet_is_a_collection(tmp_path: Path) -> None:
    rows = [document._asdict() | {"source": "a"} for document in DOCUMENTS]
    shards = Dataset.from_list([rows[:1], rows[1:], []]).flat_map(list)
    create_backend("sync").execute(shards.write_parquet(f"{tmp_path}/part-{{shard}}.parquet"))
    assert list(read_documents(str(tmp_path))) == DOCUMENTS
    attributes = Dataset.from_list([{"id": "a", "attributes": {"score": 1}}])
    create_backend("sync").execute(attributes.write_parquet(f"{tmp_path}/part-4.parquet"))
    with pytest.raises(ValueError, match=r"part-4.parquet row 1 is not a document with an id and a text: 'text'"):
        list(read_documents(str(tmp_path)))


def test_empty_folder_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no documents under {tmp_path}"):
        list(read_documents(str(tmp_path)))
    with pytest.raises(ValueError, match="no documents to write"):
        write_documents(str(tmp_path), [])


GOOD = b'{"id": "a", "text": "b"}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "line 2 is not a document"),
        (b"[1]", "line 2 is not a document"),
        (b"[" * 100_000, "line 2 is not a document .*recursion"),
        (b'{"id": "a"}', "line 2 is not a document"),
        (b'{"id": 7, "text": "x"}', "line 2 is not a document: its id is 7; an id"),
        (b'{"id": "a", "text": "\\ud800"}', "line 2 has half of a character .* in its text"),
        (b" " * (33 << 20), "line 2 has more than 33,554,432 bytes"),
    ],
    ids=range(7),
)
def test_malformed_document_line_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "part.jsonl.gz").write_bytes(gzip.compress(GOOD + line))
    with pytest.raises(ValueError, match=f"part.jsonl.gz {reason}"):
        list(read_documents(str(tmp_path)))


def test_cut_or_foreign_document_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "part.jsonl.gz"
    file.write_bytes(gzip.compress(GOOD)[:-9])
    with pytest.raises(ValueError, match=r"part.jsonl.gz cannot be read on after line 0"):
        list(read_documents(str(tmp_path)))
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"part.jsonl.gz is a pointer of Git LFS"):
        list(read_documents(str(tmp_path)))


def test_failed_write_keeps_old_content_and_no_temp_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(str(path), "old")
    with pytest.raises(RuntimeError), atomic_writer(str(path)) as file:
        file.write(b"half")
        raise RuntimeError
    assert read_text(str(path)) == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


KILLED_WHILE_IT_WRITES = """
import os, sys
from tradewind.datasets.files import atomic_writer
with atomic_writer(sys.argv[1]) as file:
    file.write(b"half")
    file.close()
    os._exit(9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["local", "gs"])
def test_cleanup_removes_only_temp_files_of_killed_writer(store: str, tmp_path: Path, cloud: LocalCloudStorage) -> None:
    folder = str(tmp_path / "out") if store == "local" else "gs://bucket/killed-writer"
    write_text(join(folder, "file.txt"), "old")
    write_text(join(folder, "mine.part"), "mine")
    command = [sys.executable, "-c", KILLED_WHILE_IT_WRITES, join(folder, "file.txt")]
    assert subprocess.run(command, check=False).returncode == 9
    fs, root = url_to_fs(folder)
    fs.invalidate_cache()
    assert len(fs.ls(root)) == 3
    remove_unfinished(folder)
    fs.invalidate_cache()
    assert sorted(name.rpartition("/")[2] for name in fs.ls(root, detail=False)) == ["file.txt", "mine.part"]
    assert read_text(join(folder, "file.txt")) == "old"
    remove_unfinished(join(folder, "nowhere"))


@pytest.mark.parametrize("name", ["a[1].txt", "what?.txt", "st*r.txt", "per%20cent #1.txt"])
def test_glob_characters_in_name_are_literal(name: str, any_folder: str) -> None:
    for text in ("old", "new"):
        write_text(join(any_folder, name), text)
    remove_unfinished(any_folder)
    assert [file.path for file in list_files(any_folder)] == [name]
    assert read_text(join(any_folder, name)) == "new"


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 2, 3], ids=["written aside", "copied to its place", "removed aside"])
def test_lost_answer_does_not_break_write(
    lost: int, gcs: LocalCloudStorage, gs_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, changes = gcs.answer, []

    def answer_and_lose_one(call: HttpRequest) -> Answer:
        given = answer(call)
        if given.kind in gcs.writes:
            changes.append(given.kind)
            gcs.lost_answers = int(len(changes) == lost)
        return given

    monkeypatch.setattr(gcs, "answer", answer_and_lose_one)
    write_text(join(gs_folder, "x"), "text")
    assert changes[lost - 1] == ("write", "copy", "delete")[lost - 1] and len(changes) > 3
    assert [file.path for file in list_files(gs_folder)] == ["x"]
