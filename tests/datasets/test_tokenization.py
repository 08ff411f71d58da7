"""Tokenization: caches equal to Levanter's, work that a next attempt repeats, and refused inputs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.datasets.caches import config, contents, lines, with_tokenizers
from tests.recipes.data.steps import run
from tradewind.datasets import Dataset, PipelineError, create_backend, dataset_step
from tradewind.datasets.files import write_json, write_text
from tradewind.datasets.tokenization import RECORD_FILE, SPAN_BYTES, TokenizeFilesConfig, tokenize
from tradewind.marin.defaults import default_tokenize
from tradewind.recipes.data import (
    C4,
    FilterConfig,
    MaskPii,
    consolidate,
    deduplicate_exact,
    deduplicate_fuzzy,
    filter_documents,
    from_dolma,
    html_to_text,
    normalize,
    to_dolma,
)
from tradewind.recipes.token_cache import own_scratch
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.steps import ExecutorStep, this_output_path

pytestmark = [pytest.mark.slow]

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<end>{% endgeneration %}{% else %}{{ message.content }}{% endif %}"
    "{% endfor %}"
)
TEXTS = [
    "one text",
    "",
    "naïve \U0001f600 <end> in the middle",
    "line\nend\u2028s",
    "x" * 30_000 + " " + "yz " * 10_000,
    "x" + "th" * 15_000,
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the three tokenizers."""
    return with_tokenizers(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose path has no word ``test``, which data to train on may not have."""
    return tmp_path_factory.mktemp("store")


def write_parquet(path: Path, texts: list[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"number": range(len(texts)), "text": texts}), path, row_group_size=2)


def zstd(*frames: bytes) -> bytes:
    import pyarrow as pa

    return b"".join(pa.compress(frame, "zstd", asbytes=True) for frame in frames)


@pytest.fixture(scope="module")
def texts(root: Path) -> list[str]:
    """Write files of every kind; return their paths in the order of the config."""
    folder = root / "texts"
    folder.mkdir()
    (folder / "d.jsonl").write_bytes(lines(TEXTS))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b""))
    (folder / "b.jsonl.zst").write_bytes(zstd(lines(TEXTS[:3])))
    write_parquet(folder / "a.parquet", TEXTS[:5])
    (folder / "e.json.gz").write_bytes(gzip.compress(lines([f"the {number}" for number in range(600)])))
    return [str(folder / name) for name in ("d.jsonl", "c.jsonl.gz", "b.jsonl.zst", "a.parquet", "e.json.gz")]


def levanters(path: Path, files: list[str], format: Any, tokenizer: Path) -> str:
    """Make the cache of these files with Levanter's own builder."""
    from levanter.data.sharded_datasource import UrlDataSource
    from levanter.data.text.cache import build_lm_dataset_cache
    from levanter.tokenizers import load_tokenizer

    with own_scratch():
        build_lm_dataset_cache(str(path / "train"), UrlDataSource(files), format, load_tokenizer(str(tokenizer)))
    return str(path)


@pytest.mark.parametrize(("tokenizer", "span_bytes"), [("begin", SPAN_BYTES), ("end", 200)])
def test_text_cache_matches_levanter(root: Path, texts: list[str], tokenizer: str, span_bytes: int) -> None:
    from levanter.data.text import TextLmDatasetFormat

    ours = tokenize(config(root, texts, f"ours-{tokenizer}", tokenizer), span_bytes=span_bytes)
    theirs = contents(levanters(root / f"theirs-{tokenizer}", texts, TextLmDatasetFormat(), root / tokenizer))
    assert contents(str(root / f"ours-{tokenizer}")) == theirs
    assert ours == {"train_documents": 614, "train_tokens": len(theirs["input_ids"]) // 8}


def test_sample_takes_count_per_file_and_no_part_of_full_cache(root: Path, texts: list[str]) -> None:
    sampled = tokenize(config(root, texts, "sample", sample_count=4), span_bytes=200)
    ledger = json.loads((root / "sample/train/shard_ledger.json").read_text())
    assert list(ledger["shard_rows"].values()) == [4, 0, 3, 4, 4] and sampled["train_documents"] == 15
    assert tokenize(config(root, texts, "sample"))["train_documents"] == 614


def test_bucket_parquet_gives_same_cache_as_local_parquet(root: Path, cloud: LocalCloudStorage) -> None:
    here = root / "shards"
    here.mkdir()
    for number in range(2):
        write_parquet(here / f"{number}.parquet", TEXTS[number : number + 4])
        fsspec.filesystem("gs").pipe_file(f"bucket/texts/{number}.parquet", (here / f"{number}.parquet").read_bytes())
    made = tokenize(config(root, [f"{here}/*.parquet"], "of-here"))
    assert tokenize(config(root, ["gs://bucket/texts/*.parquet"], "of-a-bucket")) == made
    assert made["train_documents"] == 8
    of_bucket, of_here = contents(str(root / "of-a-bucket")), contents(str(root / "of-here"))
    assert of_bucket["input_ids"] == of_here["input_ids"] and of_bucket["input_ids ends"] == of_here["input_ids ends"]


def test_chat_cache_matches_levanter_including_masks(root: Path) -> None:
    from levanter.data.text import ChatLmDatasetFormat

    file = root / "chats.jsonl"
    roles = ("user", "assistant")
    file.write_bytes(
        lines([[{"role": role, "content": f"{role} {n}"} for role in roles * n] for n in range(1, 5)], "turns")
    )
    format = ChatLmDatasetFormat(messages_field="turns", chat_template=TEMPLATE)
    found = tokenize(config(root, [str(file)], "our-chats", format=format))
    fields = ("input_ids", "assistant_masks")
    theirs = contents(levanters(root / "their-chats", [str(file)], format, root / "end"), fields)
    assert contents(str(root / "our-chats"), fields) == theirs
    assert found["train_documents"] == 4 and 0 < sum(theirs["assistant_masks"]) < len(theirs["input_ids"]) // 4


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([{"role": "user", "content": "u"}], "Chat did not contain an assist"),
        ([{"role": "odd", "content": "u"}], "no such role"),
        (None, ""),
    ],
)
def test_chat_not_matching_format_is_refused_with_line(root: Path, turns: Any, message: str) -> None:
    from levanter.data.text import ChatLmDatasetFormat

    strict = "{% for message in messages if message.role == 'odd' %}{{ raise_exception('no such role') }}{% endfor %}"
    good = [{"role": "assistant", "content": "a"}]
    files = path_of(root, "chats.jsonl", lines([good, turns], "messages"))
    with pytest.raises(ValueError, match=f"chats.jsonl line 2 does not fit the format: {message}"):
        tokenize(config(root, files, "odd-chats", format=ChatLmDatasetFormat(chat_template=strict + TEMPLATE)))


@pytest.mark.parametrize("code", ["''.__class__.__mro__", "cycler.__init__.__globals__.os.getcwd()"])
def test_template_cannot_run_code(root: Path, code: str) -> None:
    from levanter.data.text import ChatLmDatasetFormat

    files = path_of(root, "chats.jsonl", lines([[{"role": "assistant", "content": "a"}]], "messages"))
    format = ChatLmDatasetFormat(chat_template=f"{{{{ {code} }}}}{TEMPLATE}")
    with pytest.raises(ValueError, match="chats.jsonl line 1 does not fit the format: access to attribute '__.*unsafe"):
        tokenize(config(root, files, "code", format=format))


def test_chunked_arrays_are_assembled_from_partial_shards(
    root: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levanter.store.jagged_array.DEFAULT_WRITE_CHUNK_SIZE", 8)
    monkeypatch.setattr("levanter.store.jagged_array.DEFAULT_CHUNK_SIZE", 4)
    small = [texts[1], texts[4], str(root / "chunks.jsonl")]
    Path(small[2]).write_bytes(lines(TEXTS[:4]))
    tokenize(config(root, small, "chunks"))
    chunked = contents(str(root / "chunks"))
    assert len(list((root / "chunks/train/input_ids/data/c").iterdir())) == -(-len(chunked["input_ids"]) // 8 // 8)
    monkeypatch.undo()
    tokenize(config(root, small, "whole"))
    assert chunked == contents(str(root / "whole"))


class Attempts:
    """Attempts at one output; each reports the files that it tokenized."""

    def __init__(self, folder: Path, tokenizers: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._tokenizers = tokenizers
        self._capsys = capsys

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def tokenized(self, error: str | None = None, tokenizer: str = "end", **more: Any) -> str:
        files = sorted(str(file) for file in self.folder.glob("*.jsonl"))
        given = TokenizeFilesConfig(files, [], str(self.folder / "out"), str(self._tokenizers / tokenizer), **more)
        self._capsys.readouterr()
        if error is None:
            tokenize(given)
        else:
            with pytest.raises(ValueError, match=error):
                tokenize(given)
        begin = f"tokenizes {self.folder}/"
        printed = self._capsys.readouterr().out.splitlines()
        return "".join(line.removeprefix(begin).removesuffix(".jsonl") for line in printed if line.startswith(begin))


@pytest.fixture
def attempts(root: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> Attempts:
    """Prepare attempts at files ``a``, ``b`` and ``c``; the last is malformed."""
    attempts = Attempts(tmp_path_factory.mktemp("tries"), root, capsys)
    for name in "ab":
        attempts.write(f"{name}.jsonl", lines([f"text {name}"]))
    attempts.write("c.jsonl", b'{"text": "whole"}\n{"text": "cu')
    assert attempts.tokenized(r"/c.jsonl line 2 is malformed: ") == "abc"
    return attempts


def test_next_attempt_reuses_finished_shards_and_finished_cache(attempts: Attempts) -> None:
    attempts.write("c.jsonl", lines(["whole"]))
    assert attempts.tokenized() == "c"
    assert not (attempts.folder / "out/shards").exists()
    (attempts.folder / "out/shards/train").mkdir(parents=True)
    assert attempts.tokenized() == "" and not (attempts.folder / "out/shards").exists()
    (attempts.folder / "out/train/shard_ledger.json").unlink()
    assert attempts.tokenized() == "abc", "a cache without its ledger is none"


@pytest.mark.parametrize(
    "change",
    [{"tokenizer": "begin"}, {"text_key": "other"}, {}],
    ids=["another tokenizer", "another format", "another state of a file"],
)
def test_shards_of_other_settings_or_files_not_reused(attempts: Attempts, change: dict[str, Any]) -> None:
    shards = attempts.folder / "out/shards/train"
    before = set(shards.iterdir())
    for name in "c" if "tokenizer" in change else "abc":
        attempts.write(f"{name}.jsonl", b'{"text": "longer", "other": "o"}\n')
    assert attempts.tokenized(**change) == "abc"
    assert len(before) == 2 and not shards.exists()
    assert attempts.tokenized() == ("" if not change else "abc")


def test_overwritten_cache_is_not_mistaken_for_recorded_one(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt at another version of a file ends between its caches and their record."""

    def ends(path: str, value: Any) -> None:
        if path.endswith(RECORD_FILE):
            raise KeyboardInterrupt
        write_json(path, value)

    attempts.write("c.jsonl", lines(["whole"]))
    assert attempts.tokenized() == "c"
    file = attempts.folder / "a.jsonl"
    content, times = file.read_bytes(), file.stat()
    attempts.write("a.jsonl", lines(["other"]))
    monkeypatch.setattr("tradewind.datasets.tokenization.write_json", ends)
    with pytest.raises(KeyboardInterrupt):
        attempts.tokenized()
    monkeypatch.undo()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert attempts.tokenized() == "a"


def test_split_without_record_is_made_again(root: Path, tmp_path: Path) -> None:
    """A kill ended an attempt at other training files between its record and the state."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(lines([name]))
    train, held_out, out = (str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "out"))
    both = TokenizeFilesConfig([train], [held_out], out, str(root / "end"), allow_test_in_train=True)
    made = tokenize(both)
    record = tmp_path / "out" / RECORD_FILE
    whole = record.read_bytes()
    write_json(str(record), {"train": json.loads(whole)["train"]})
    assert tokenize(both) == made and record.read_bytes() == whole


def test_next_attempt_reuses_finished_spans_of_large_file(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    good = lines([f"text {number:03}" for number in range(20)])
    file.write_bytes(good)
    kept = file.stat()
    at = len(good) // 4
    given = TokenizeFilesConfig([], [str(file)], str(tmp_path / "out"), str(root / "end"))
    file.write_bytes(good[: 2 * at] + b"[" + good[2 * at + 1 :])
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    with pytest.raises(ValueError, match=rf"a.jsonl line at byte {2 * at:,} is malformed: "):
        tokenize(given, span_bytes=at)
    file.write_bytes(good)
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    capsys.readouterr()
    assert tokenize(given, span_bytes=at)["validation_documents"] == 20
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"Tokenizing 1 files of {4 * at} bytes; 0 files and {2 * at} bytes are already done."
    assert [line for line in printed if line.startswith("tokenizes")] == [
        f"tokenizes {file} after byte {2 * at:,}",
        f"tokenizes {file} after byte {3 * at:,}",
    ]
    assert any(line.startswith("tokenized 1 of 1 files, ") for line in printed)


def path_of(root: Path, name: str, content: bytes) -> list[str]:
    shutil.rmtree(root / "bad", ignore_errors=True)
    path = root / "bad" / name
    path.parent.mkdir()
    path.write_bytes(content)
    return [str(path)]


REFUSED_FILES: list[tuple[str, bytes, str]] = [
    ("a.txt", b"a", r"train_paths: .*/a.txt has an unknown ending: there are \.jsonl, "),
    ("my_test_set.jsonl", b"", "train_paths: .*/my_test_set.jsonl looks like test data .*allow_test_in_train=True"),
    (
        "b.jsonl",
        lines(["a"]) + lines(["b"], "content"),
        r"/b.jsonl line 2 has no 'text': it has 'id', 'content'. Give its format's text_key.",
    ),
    ("b.jsonl", lines(["a", 1]), "/b.jsonl line 2 has a 'text' that is no text but a int"),
    (
        "b.jsonl",
        b'{"text": "a \\ud800"}\n',
        r"/b.jsonl line 1 has half of a character .*\\ud800\) after 'a ': replace it",
    ),
    ("b.jsonl", b"\n[1]\n", "/b.jsonl line 2 is no object but a list"),
    ("b.jsonl", b'{"text": "\xff"}\n', "/b.jsonl line 1 is malformed"),
    ("b.jsonl", b'{"text": ' + b"[" * 100_000, "/b.jsonl line 1 is malformed: maximum recursion depth"),
    ("b.jsonl.gz", gzip.compress(lines(["a"] * 9), mtime=0)[:-9], "/b.jsonl.gz cannot be read on after line "),
    ("b.jsonl.zst", b"no archive", "/b.jsonl.zst cannot be read on after line 0"),
    ("b.parquet", b"PAR1", "/b.parquet cannot be read on after row 0"),
]
GOOD = ["ROOT/texts/a.parquet"]
REFUSED_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"train_paths": ["ROOT/no"]}, "train_paths: there is nothing at .*/no"),
    ({"train_paths": ["ROOT/hidden"]}, "train_paths: .*/hidden holds no file that can be read"),
    ({"train_paths": ["ROOT/held"]}, "validation.jsonl looks like test data"),
    ({"train_paths": []}, "train_paths and validation_paths are empty"),
    ({"train_paths": "/x"}, "train_paths='/x': give a list"),
    ({"train_paths": GOOD * 2}, "train_paths: .*/a.parquet is listed twice"),
    ({"tokenizer": "ROOT/endless"}, "tokenizer='.*/endless' has no end-of-text token"),
    ({"tokenizer": "ROOT/no"}, "no tokenizer under tokenizer .*/no"),
    ({"text_key": "content"}, "/a.parquet row 1 has no 'content': its columns are 'number', 'text'"),
    ({"sample_count": 0}, "sample_count=0: give a whole number of at least 1, or None"),
    ({"format": SimpleNamespace()}, "format is a SimpleNamespace: give one of Levanter's"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED_FILES)
def test_untokenizable_file_is_refused_with_line(root: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenize(config(root, path_of(root, name, content), "refused"))


@pytest.mark.parametrize(("settings", "message"), REFUSED_SETTINGS)
def test_invalid_settings_are_refused_with_field(
    root: Path, texts: list[str], settings: dict[str, Any], message: str
) -> None:
    for file in (root / "hidden/.a.jsonl", root / "held/validation.jsonl"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    given = {"train_paths": GOOD, "validation_paths": [], "tokenizer": "ROOT/end", "cache_path": "ROOT/refused"}
    given |= {"format": None, "allow_test_in_train": False} | settings
    with pytest.raises(ValueError, match=message):
        tokenize(SimpleNamespace(**{name: at(root, value) for name, value in given.items()}))


def at(root: Path, value: Any) -> Any:
    """Replace ``ROOT`` in a text or a list of texts."""
    if isinstance(value, list):
        return [at(root, each) for each in value]
    return value.replace("ROOT", str(root)) if isinstance(value, str) else value


def test_invalid_input_is_found_before_any_output_is_written(root: Path) -> None:
    [wrong] = path_of(root, "b.jsonl", lines(["a"], "content"))
    (root / "fine.jsonl").write_bytes(lines(["a"]))
    given = TokenizeFilesConfig([str(root / "fine.jsonl")], [wrong], str(root / "untouched"), str(root / "end"))
    with pytest.raises(ValueError, match="b.jsonl line 1 has no 'text'"):
        tokenize(given)
    assert not (root / "untouched").exists()


def test_allowed_test_data_is_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = path_of(root, "a_test_b.jsonl", lines(["a"]))
    assert tokenize(config(root, files, "allowed", allow_test_in_train=True))["train_documents"] == 1
    assert "a_test_b.jsonl looks like test data ('test' or 'validation'), which is allowed" in capsys.readouterr().out


def encoded(shard: str) -> list[dict[str, Any]]:
    """Return four rows of tokens; note the shard, and fail for one that may not be made yet."""
    folder, number = shard.rsplit("/", 1)
    if number == "2" and not Path(folder, "go").exists():
        raise OSError("the disk is gone")
    with Path(folder, "made").open("a") as made:
        made.write(number)
    return [{"input_ids": [int(number)] * length, "mask": np.ones(length, np.uint8)} for length in (2, 0, 3, 1)]


def test_rows_of_tokens_become_one_cache_shard_by_shard(tmp_path: Path) -> None:
    from levanter.store.cache import TreeCache

    shards = [*(f"{tmp_path}/{number}" for number in range(3))]
    data = Dataset.from_list(shards).flat_map(encoded).write_levanter_cache(f"{tmp_path}/cache", {"tokenizer": "a/b"})
    backend = create_backend("sync", scratch=f"{tmp_path}/scratch")
    with pytest.raises(PipelineError, match="the disk is gone"):
        backend.execute(data)
    assert not (tmp_path / "cache").exists()
    Path(tmp_path, "go").touch()
    for _ in range(2):
        assert backend.execute(data) == [f"{tmp_path}/cache/shard_ledger.json"]
        assert (tmp_path / "made").read_text() == "012"
    cache = TreeCache.load(f"{tmp_path}/cache", {name: np.zeros(0, np.int32) for name in ("input_ids", "mask")})
    rows = [cache[number] for number in range(len(cache))]
    assert [row["input_ids"].tolist() for row in rows] == [[n] * length for n in range(3) for length in (2, 0, 3, 1)]
    assert [row["mask"].tolist() for row in rows] == [[1] * length for length in (2, 0, 3, 1)] * 3
    assert cache.ledger.metadata.preprocessor_metadata == {"tokenizer": "a/b"}
    assert cache.ledger.field_counts == {"input_ids": 18, "mask": 18}
    assert list((tmp_path / "scratch").rglob("*.tokens")) == []


def own_rows(config: dict[str, str]) -> Dataset[str]:
    """Return a pipeline whose second shard has no rows: its file has no columns."""
    return (
        Dataset.from_list([TEXTS[:2], []]).flat_map(list).map(as_row).write_parquet(config["to"] + "/{shard}.parquet")
    )


def as_row(text: str) -> dict[str, str]:
    return {"text": text}


DOCUMENTS: dict[str, Callable[[ExecutorStep], ExecutorStep]] = {
    "normalize": lambda pages: pages,
    "filter_documents": lambda pages: filter_documents("filtered", pages, [MaskPii()]),
    "consolidate": lambda pages: consolidate(
        "clean", pages, [FilterConfig("remove_doc", deduplicate_exact("equal", pages), "duplicate_document")]
    ),
    "to_dolma": lambda pages: to_dolma("dolma", pages),
    "html_to_text": lambda pages: html_to_text("texts", pages, html_field="text", extractor="markdownify"),
    "from_dolma": lambda pages: from_dolma("back", to_dolma("dolma", pages), shards=2),
    "dataset_step": lambda pages: dataset_step("own", own_rows, {"to": this_output_path()}),
}
ATTRIBUTES: dict[str, Callable[[ExecutorStep], ExecutorStep]] = {
    "documents": lambda pages: deduplicate_exact("equal", pages),
    "clusters": lambda pages: deduplicate_fuzzy("similar", pages),
    "measures": lambda pages: filter_documents("measures", pages, [C4()], keep_attributes=True),
    "lines": lambda pages: ExecutorStep("lines", write_attributes, {"to": this_output_path()}),
}


def write_attributes(config: dict[str, str]) -> None:
    write_text(f"{config['to']}/part.jsonl", '{"id": "a", "attributes": {}}\n')


def made_of_pages(make: Callable[[ExecutorStep], ExecutorStep], root: Path, folder: Path) -> dict[str, Any]:
    """Tokenize what a recipe makes of three pages, two of them equal; return the record."""
    (folder / "raw").mkdir()
    (folder / "raw/pages.jsonl").write_bytes(lines(["One text.", "Another text.", "One text."]))
    pages = normalize("pages", f"{folder}/raw", shards=3)
    step = default_tokenize("pages", make(pages).as_input_name(), str(root / "end"))
    return dict(json.loads((run(step, folder / "store") / RECORD_FILE).read_text()))


@pytest.mark.parametrize("recipe", DOCUMENTS)
def test_each_set_of_documents_is_tokenized(root: Path, folder: Path, recipe: str) -> None:
    assert made_of_pages(DOCUMENTS[recipe], root, folder)["train"]["documents"] == 2


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_attributes_of_documents_are_refused(root: Path, folder: Path, kind: str) -> None:
    hint = "" if kind == "clusters" else ".*'id', 'attributes'. Join attributes with their documents by consolidate"
    told = f"part.* has no 'text': {hint}"
    with pytest.raises(ValueError, match=told):
        made_of_pages(ATTRIBUTES[kind], root, folder)
