"""Listings, descriptions, texts and images: of any store, of hostile names, and of what other tools wrote."""

from __future__ import annotations

import gzip
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browsing.files import WRITERS, allowed
from tests.datasets.caches import with_tokenizers, write_cache
from tests.support.outputs import by_task, make_output
from tradewind.browsing import listing, look
from tradewind.browsing.access import Access
from tradewind.browsing.answers import Description
from tradewind.browsing.arrays import opened_store
from tradewind.browsing.memory import bounded
from tradewind.browsing.refusals import (
    BrowsingError,
    ChangedError,
    MissingError,
    OutsideError,
    TooLargeError,
    UnreadableError,
    WrongKindError,
)
from tradewind.datasets.files import write_text
from tradewind.storage import Roots


def png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    checksum = zlib.crc32(b"IHDR" + header)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", checksum)


def describe(path: Path | str, root: Path | str | None = None) -> Description:
    return look.describe(Access(Roots((str(root or path),))), str(path))


def test_pages_of_a_folder_follow_one_another(any_folder: str) -> None:
    for name in ("b.jsonl", "a.txt", "c/x", "c/y", "d", "äö/z"):
        write_text(f"{any_folder}/{name}", "text")
    access = Access(Roots((any_folder,)))
    found, after = [], None
    for _ in range(5):
        page = look.list_folder(access, any_folder, after=after, limit=2)
        found += [(entry.name, entry.kind, entry.format, entry.size) for entry in page.entries]
        if (after := page.next) is None:
            break
    assert sorted(found) == [
        ("a.txt", "file", "text", 4),
        ("b.jsonl", "file", "jsonl", 4),
        ("c", "folder", None, None),
        ("d", "file", None, 4),
        ("äö", "folder", None, None),
    ]
    assert [entry.name for entry in look.list_folder(access, any_folder, prefix="b").entries] == ["b.jsonl"]
    assert [entry.path for entry in look.list_folder(access, f"{any_folder}/c").entries] == [
        f"{any_folder}/c/{name}" for name in "xy"
    ]
    with pytest.raises(WrongKindError):
        look.list_folder(access, f"{any_folder}/d")


def test_files_of_any_store_are_read(any_folder: str, tmp_path: Path) -> None:
    access = Access(Roots((any_folder,)))
    fs, name = listing.store_of(any_folder)
    fs.makedirs(name, exist_ok=True)
    for file, write in WRITERS.items():
        write(tmp_path / file)
        fs.pipe_file(f"{name}/{file}", (tmp_path / file).read_bytes())
        path = f"{any_folder}/{file}"
        page = look.rows(access, path, at=0.5, limit=3)
        assert len(page.rows) == 3, file
        assert look.describe(access, path).views[0] == "rows"
    with pytest.raises(MissingError):
        look.describe(access, f"{any_folder}/nothing")


def test_large_folder_is_listed_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9000):
        os.mkfifo(tmp_path / f"{number:05d}")  # names without files, which cost an inode each
    page = look.list_folder(allowed(tmp_path), str(tmp_path), after="00100", limit=3)
    assert [entry.name for entry in page.entries] == ["00101", "00102", "00103"]
    assert page.in_order and page.note is None and {entry.kind for entry in page.entries} == {"other"}
    monkeypatch.setattr(listing, "MAX_SCAN_S", -1.0)
    page = look.list_folder(allowed(tmp_path), str(tmp_path), limit=3)
    assert len(page.entries) == 3 and not page.in_order
    assert page.note == "The folder has more than 4,096 names, so this list is not complete: narrow it by a prefix."


def test_hostile_names_and_links_are_listed_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "a\n\x1b[31m<b>").write_text("x")
    os.mkdir(os.fsencode(root) + b"/\xff")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (root / "in").symlink_to("a\n\x1b[31m<b>")
    page = look.list_folder(allowed(root), str(root))
    kinds = {entry.name: entry.kind for entry in page.entries}
    assert kinds == {
        "a\n\x1b[31m<b>": "file",
        "\ufffd": "other",
        "out": "other",
        "up": "other",
        "loop": "other",
        "in": "file",
    }
    assert [entry.target for entry in page.entries if entry.target] == [str(root / "a\n\x1b[31m<b>")]


@pytest.mark.parametrize(
    "path", ["out", "up/secret", "../secret", "/etc/passwd", "", "\0", "a::b", "data:,x", "http://x"]
)
def test_paths_outside_the_roots_are_refused(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("..")
    given = path if path[:1] in ("/", "d", "h", "") else f"{root}/{path}"
    arguments = {"value": {"at": "0", "column": "a"}, "piece": {"offset": 0}}
    for name, call in look.CALLS.items():
        with pytest.raises(OutsideError):
            call(allowed(root), given, **arguments.get(name, {}))


def test_link_that_changes_after_the_check_opens_nothing(tmp_path: Path) -> None:
    """The second check is of the opened file, so a link cannot be exchanged in between."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")

    class Unchecked(Access):
        def check(self, path: str) -> None: ...

    with pytest.raises(ChangedError, match="changed while it was opened"):
        Unchecked(Roots((str(root),))).open(str(root / "link"))


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    for call in (look.describe, look.rows, look.text, look.image):
        with pytest.raises(WrongKindError, match="a pipe"):
            call(allowed(tmp_path), str(tmp_path / "a.jsonl"))


def test_text_pages_follow_one_another_both_ways(tmp_path: Path) -> None:
    content = "".join(f"line {number} äöü€😀\n" for number in range(3000))
    path = tmp_path / "a.log"
    path.write_text(content)
    access = allowed(tmp_path)
    for count in (1, 5, 1000, 1 << 20):
        found, offset, steps = "", 0, 0
        while offset is not None and steps < 200:
            page = look.text(access, str(path), offset, count)
            assert page.start == offset and not page.is_binary
            found, offset, steps = found + page.text, page.next, steps + 1
        assert content.startswith(found) and (offset is not None or found == content)
    page = look.text(access, str(path), -500, 500)
    assert content.endswith(page.text) and page.text.startswith("line") and page.next is None
    before = look.text(access, str(path), page.previous or 0, page.start - (page.previous or 0))
    assert content.endswith(before.text[-20:] + page.text)


def test_text_of_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\n")
    first = look.text(allowed(tmp_path), str(path), 0, 4)
    with path.open("a") as file:
        file.write("three\n")
    second = look.text(allowed(tmp_path), str(path), 4, 4, first.state)
    assert second.text == "two\n" and "has grown" in str(second.note)
    path.write_text("other\n")
    for state in (first.state, second.state):
        with pytest.raises(ChangedError, match="has changed since"):
            look.text(allowed(tmp_path), str(path), 4, 4, state)
    assert look.text(allowed(tmp_path), str(path), 4, 4).note is None


def test_text_of_odd_files_is_shown(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a\xff\0b")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"packed text\n" * 1000))
    access = allowed(tmp_path)
    page = look.text(access, str(tmp_path / "binary"))
    assert (page.text, page.is_binary) == ("a\ufffd\0b", True)
    assert look.text(access, str(tmp_path / "empty")).next is None
    page = look.text(access, str(tmp_path / "a.txt.gz"), 12, 12)
    assert (page.text, page.size, page.next) == ("packed text\n", None, 24)
    with pytest.raises(UnreadableError, match="found only by reading on"):
        look.text(access, str(tmp_path / "a.txt.gz"), -5)
    assert look.text(access, str(tmp_path / "empty"), 1 << 50).text == ""


def test_images_are_known_by_their_bytes(tmp_path: Path) -> None:
    from PIL import Image

    access = allowed(tmp_path)
    for name, kind in {"a.png": "png", "a.jpg": "jpeg", "a.gif": "gif", "a.webp": "webp"}.items():
        Image.new("RGB", (31, 17)).save(tmp_path / name)
        media_type, data = look.image(access, str(tmp_path / name))
        assert media_type == f"image/{kind}" and data == (tmp_path / name).read_bytes()
        assert [fact.value for fact in describe(tmp_path / name, tmp_path).facts] == [media_type, "31 × 17"]
    lossless = tmp_path / "lossless.webp"
    Image.new("RGB", (31, 17)).save(lossless, lossless=True)
    assert describe(lossless, tmp_path).facts[1].value == "31 × 17"
    for name, content, error in (
        ("svg.png", b"<svg onload='alert(1)'/>", WrongKindError),
        ("html.gif", b"<html>", WrongKindError),
        ("bomb.png", png(100_000, 100_000), TooLargeError),
        ("cut.png", png(1, 1)[:18], UnreadableError),
        ("endless.jpg", b"\xff\xd8\xff" + b"\xff" * 1000, UnreadableError),
        ("zeros.jpg", b"\xff\xd8\xff\xe0\0\0" * 1000, UnreadableError),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(error):
            look.image(access, str(tmp_path / name))


def test_safetensors_lists_arrays_from_its_header(tmp_path: Path) -> None:
    header = {"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"format": "pt"}}
    path = tmp_path / "a.safetensors"
    for text, notes in ((json.dumps(header), []), ("[1]", ["no object"]), ('{"w": 1}', ["not subscriptable"])):
        path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + b"\0" * 12)
        found = describe(path, tmp_path)
        assert found.views == ["arrays"] and len(found.notes) == len(notes)
        assert all(word in note for word, note in zip(notes, found.notes, strict=True))
        if not notes:
            assert [(each.name, each.shape, each.dtype, each.size) for each in found.arrays] == [
                ("w", [2, 3], "BF16", 12)
            ]
    path.write_bytes(struct.pack("<Q", 1 << 60))
    assert "is cut" in describe(path, tmp_path).notes[0]


@pytest.mark.slow
def test_token_cache_is_decoded_with_its_tokenizer(tmp_path: Path) -> None:
    with_tokenizers(tmp_path)
    cache = write_cache(tmp_path / "out" / "train", rows=300, tokens_per_row=20)
    ledger = json.loads((cache / "shard_ledger.json").read_text())
    found = describe(cache, tmp_path)
    assert (found.format, found.rows, found.by_number) == ("token_cache", 300, True)
    assert "does not name its tokenizer" in found.notes[0]
    ledger["metadata"] = {"preprocessor_metadata": {"tokenizer": str(tmp_path / "end"), "append_eos": True}}
    (cache / "shard_ledger.json").write_text(json.dumps(ledger))
    access = allowed(tmp_path)
    with bounded():
        page = look.rows(access, str(cache), start=299)
    assert page.note is None and page.total == 300 and page.next is None
    ids, text = page.rows[0].values
    assert ids == str([*range(1, 21)]) and isinstance(text, str) and len(text) >= 20
    assert len(look.rows(access, str(cache), limit=300, columns=["text"]).rows) == 300
    assert look.rows(access, str(cache), filter=text[:5], limit=3).scanned == 3
    assert look.value(access, str(cache), "7", "input_ids").text.count(",") == 19
    hidden = look.rows(Access(Roots((str(tmp_path / "out"),))), str(cache), limit=1)
    assert "was not found below an allowed root" in str(hidden.note) and len(hidden.columns) == 1


def test_token_cache_does_not_read_through_links(tmp_path: Path) -> None:
    cache = write_cache(tmp_path / "root" / "cache")
    chunk = cache / "input_ids" / "data" / "c" / "0"
    chunk.rename(tmp_path / "chunk")
    chunk.symlink_to(tmp_path / "chunk")
    with pytest.raises(OutsideError):
        look.rows(allowed(tmp_path / "root"), str(cache))


def test_tensorstore_reads_what_was_checked(tmp_path: Path) -> None:
    """It opens files itself, so another process could replace one by a link after the check."""
    import tensorstore

    folder = tmp_path / "root" / "array"
    (folder / "c").mkdir(parents=True)
    (folder / "c" / "0").write_text("own")
    (tmp_path / "secret").write_text("secret")
    with opened_store(allowed(tmp_path / "root"), str(folder), ["c/0", "c/1"]) as spec:
        for name in ("0", "1"):
            (folder / "c" / name).unlink(missing_ok=True)
            (folder / "c" / name).symlink_to(tmp_path / "secret")
        store = tensorstore.KvStore.open(spec).result()
        assert store.read("c/0").result().value == b"own"
        assert [store.read(name).result().state for name in ("c/1", "c/2", "../../secret")] == ["missing"] * 3


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"name": "v2"}, "0"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.0"),
    ],
)
def test_other_names_of_chunks_open_no_link(tmp_path: Path, keys: dict[str, Any], name: str) -> None:
    data = write_cache(tmp_path / "root" / "cache") / "input_ids" / "data"
    fields = json.loads((data / "zarr.json").read_text())
    (data / "zarr.json").write_text(json.dumps(fields | {"chunk_key_encoding": keys}))
    (data / "c" / "0").rename(tmp_path / "chunk")
    (data / name).symlink_to(tmp_path / "chunk")
    with pytest.raises(UnreadableError, match="names its chunks otherwise"):
        look.rows(allowed(tmp_path / "root"), str(data.parents[1]))


@pytest.mark.parametrize(
    "ledger",
    ["", "[]", "{}", '{"total_num_rows": "x"}', '{"total_num_rows": 5, "field_counts": {"../x": 1}}', "[" * 9999],
)
def test_damaged_token_cache_is_reported(tmp_path: Path, ledger: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "shard_ledger.json").write_text(ledger)
    with pytest.raises(BrowsingError):
        look.rows(allowed(tmp_path), str(cache))
    assert describe(cache, tmp_path).format == "token_cache"


def test_checkpoint_lists_arrays_without_reading_them(tmp_path: Path) -> None:
    import tensorstore

    step = tmp_path / "checkpoints" / "step-10"
    for name in ("model/w", "opt/count"):
        base = {"driver": "ocdbt", "base": f"file://{step}", "path": f"{name}/"}
        spec = {"driver": "zarr3", "kvstore": base}
        array = tensorstore.open(spec, dtype=tensorstore.float32, shape=[4, 6], create=True).result()
        array.write(np.zeros((4, 6), np.float32)).result()
    (step / "metadata.json").write_text('{"step": 10}')
    found = describe(step, tmp_path)
    assert (found.format, found.views[0]) == ("checkpoint", "arrays")
    assert [(each.name, each.shape, each.dtype, each.size) for each in found.arrays] == [
        ("model/w", [4, 6], "float32", 96),
        ("opt/count", [4, 6], "float32", 96),
    ]
    assert {fact.name: fact.value for fact in found.facts}["step"] == "10"
    (step / "manifest.ocdbt").write_bytes(b"nothing")
    assert "cannot be read" in describe(step, tmp_path).notes[0]
    (step / "d" / "linked").symlink_to("/etc/passwd")
    assert "below no allowed root" in describe(step, tmp_path).notes[0]


def test_output_tells_its_maker_and_files(tmp_path: Path) -> None:
    files = {"samples.parquet": "", "deep/part.jsonl": "{}\n", "record.json": "{}", "a/train/shard_ledger.json": "{}"}
    output = make_output(str(tmp_path), "eval/small", by=by_task("nightly", "manual__1", "small"), files=files)
    found = describe(output, tmp_path)
    assert (found.kind, found.format, found.output) == ("output", "output", output)
    made = found.made_by
    assert made is not None and made.state == "finished" and made.problem is None
    assert (made.step, made.version, made.dag_id, made.run_id, made.task_id) == (
        "eval/small", Path(output).name, "nightly", "manual__1", "small",
    )  # fmt: skip
    assert [each.name for each in found.files] == sorted(files)
    assert [(each.name, each.format) for each in found.related] == [
        ("record.json", "json"),
        ("samples.parquet", "parquet"),
        ("a/train", "token_cache"),
    ]
    inside = describe(f"{output}/deep/part.jsonl", tmp_path)
    assert (inside.output, inside.made_by) == (output, made)
    entry = look.list_folder(allowed(tmp_path), str(Path(output).parent)).entries[0]
    assert (entry.kind, entry.made_by) == ("output", made)


@pytest.mark.parametrize("content", ['{"worker_id": 1}', "[" * 10_000, "", '{"phase": "later"}'])
def test_record_of_a_later_version_is_reported(tmp_path: Path, content: str) -> None:
    output = make_output(str(tmp_path), "made")
    (Path(output) / ".executor_status.lock").write_text(content)
    found = describe(output, tmp_path)
    assert found.made_by is not None and "a later version may have written it" in str(found.made_by.problem)
    assert "part.txt" in [entry.name for entry in look.list_folder(allowed(tmp_path), output).entries]


def test_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    """A manifest is content of the store; its paths are checked when they are opened, as any others."""
    output = make_output(str(tmp_path), "made")
    manifest = Path(output, ".attempts", "1", "manifest.json")
    lines: dict[str, Any] = json.loads(manifest.read_text())
    lines["files"][0]["path"] = "../../../etc/passwd"
    manifest.write_text(json.dumps(lines))
    found = describe(output, tmp_path)
    assert "is not the one that was committed" in found.notes[0]
    with pytest.raises((OutsideError, MissingError)):
        look.text(allowed(tmp_path), found.files[0].path)


def test_download_comes_in_pieces_and_notices_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "DOWNLOAD_PIECE_BYTES", 4)
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789")
    access = allowed(tmp_path)
    stored, first = look.piece(access, str(path), 0)
    assert first == b"0123" and look.piece(access, str(path), 8, stored.state)[1] == b"89"
    path.write_bytes(b"another")
    with pytest.raises(UnreadableError, match="changed during the download"):
        look.piece(access, str(path), 4, stored.state)
    monkeypatch.setattr(look, "MAX_DOWNLOAD_BYTES", 3)
    with pytest.raises(TooLargeError):
        look.piece(access, str(path), 0)
