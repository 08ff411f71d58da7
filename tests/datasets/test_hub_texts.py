"""Data sets and tokenizers of the hub: what is read, pinned, shared and refused."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.caches import config, contents, lines, with_tokenizers
from tests.datasets.hub_server import COMMIT, REPO, TOKEN, HubServer, hub, status, wrong
from tradewind.datasets.hub_splits import HubLayoutError, split_files
from tradewind.datasets.hub_texts import REVISION_FILE
from tradewind.datasets.hub_tokenizers import stored_tokenizer
from tradewind.datasets.source_files import DamagedDownloadError, DownloadError
from tradewind.datasets.tokenization import RECORD_FILE, STATE_FILE, tokenize
from tradewind.datasets.tokenizer_files import tokenizer_files
from tradewind.marin.names.tokenizing import HfTokenizeConfig
from tradewind.records.record import read_record
from tradewind.serialization.spec import STEP_VARIABLE

__all__ = ["hub"]
MODEL = "people/words"
README = b"""---
license: mit
configs:
- config_name: default
  data_files:
  - split: train
    path: en/train/*
  - {split: validation, path: en/dev.jsonl}
  - split: test
    path: [en/test.jsonl]
- config_name: tables
  data_files: tables/*
---
# Letters
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizers(tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture
def texts(hub: HubServer, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """Fill the hub with a data set of two parts, and a tokenizer; this host has a copy of neither."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": ["p", "q"]}), tmp_path / "a.parquet")
    hub.files = {
        "README.md": README,
        "en/train/a.jsonl.gz": gzip.compress(lines(["a", "b", "c"])),
        "en/train/b.jsonl": lines(["d"]),
        "en/dev.jsonl": lines(["e"]),
        "en/test.jsonl": b"not read",
        "tables/a.parquet": (tmp_path / "a.parquet").read_bytes(),
    }
    hub.lfs = {"en/train/a.jsonl.gz"}
    hub.models[MODEL] = {file.name: file.read_bytes() for file in (root / "end").iterdir()}
    monkeypatch.setenv("TRADEWIND_PREFIX", str(tmp_path / "bucket"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no-cache"))
    return hub


def made(folder: Path, tokenizer: str = MODEL, **more: Any) -> dict[str, Any]:
    return tokenize(HfTokenizeConfig(REPO, str(folder), tokenizer, format=None, **more))


def asked(hub: HubServer, end: str) -> int:
    return sum(times for path, times in hub.asked.items() if path.endswith(end))


@pytest.mark.slow
def test_data_set_with_tokenizer_of_hub_is_tokenized(texts: HubServer, tmp_path: Path, root: Path) -> None:
    result = made(tmp_path / "out")
    record = json.loads((tmp_path / "out" / RECORD_FILE).read_text())
    assert record["dataset"] == {"id": REPO, "name": None, "revision": "main", "commit": COMMIT}
    assert result["commit"] == COMMIT
    assert (result["train_documents"], result["validation_documents"]) == (4, 1)
    copies = tmp_path / "copies"
    copies.mkdir()
    for name in ("a.jsonl.gz", "b.jsonl"):
        (copies / name).write_bytes(texts.files[f"en/train/{name}"])
    tokenize(config(root, [str(copies)], "here", allow_test_in_train=True))
    ours, here = contents(str(tmp_path / "out")), contents(str(root / "here"))
    assert ours["input_ids"] == here["input_ids"] and ours["input_ids ends"] == here["input_ids ends"]
    assert ours["ledger"]["shard_rows"] == here["ledger"]["shard_rows"]
    assert ours["ledger"]["metadata"]["preprocessor_metadata"]["tokenizer"] == MODEL
    assert set(texts.tokens) == {f"Bearer {TOKEN}"} and not asked(texts, "test.jsonl")
    assert not any(TOKEN.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert made(tmp_path / "tables", name="tables")["train_documents"] == 2
    assert made(tmp_path / "sample", sample_count=1)["train_documents"] == 2
    assert asked(texts, "/tokenizer.json") == 1, "the store has it from then on"


@pytest.mark.slow
def test_next_attempt_reads_recorded_commit(
    texts: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = texts.files["en/train/b.jsonl"]
    texts.files["en/train/b.jsonl"] = b"["
    with pytest.raises(ValueError, match=rf"hf://datasets/{REPO}@{COMMIT}/en/train/b.jsonl line 1 is malformed"):
        made(tmp_path / "out")
    texts.files["en/train/b.jsonl"] = good
    texts.revisions["main"] = "f" * 40
    capsys.readouterr()
    assert made(tmp_path / "out")["commit"] == COMMIT
    assert capsys.readouterr().out.count("tokenizes hf://") == 2 and asked(texts, f"{REPO}/revision/main") == 1
    del texts.revisions[COMMIT]
    with pytest.raises(DownloadError, match=rf"no such revision: .*{COMMIT}.* remove .*/out/{REVISION_FILE} to begin"):
        made(tmp_path / "out")


@pytest.mark.slow
def test_damaged_and_broken_answers_leave_no_shard(texts: HubServer, tmp_path: Path, root: Path) -> None:
    other, tokenizer = lines(["x"]), str(root / "end")
    texts.fail("README.md", wrong(README.replace(b"en/dev.jsonl", b"en/not.jsonl")))  # it decides the splits
    texts.fail("a.jsonl.gz", wrong(b"<html>The proxy's page</html>"), wrong(b""))  # first files are also read for a row
    texts.fail("en/dev.jsonl", wrong(b"<" * (len(texts.files["en/dev.jsonl"]) - 1) + b"\n"))
    texts.fail("b.jsonl", status(503, "0"), wrong(other))
    assert made(tmp_path / "out", tokenizer)["train_documents"] == 4
    texts.fail("b.jsonl", *[wrong(other)] * 3)
    with pytest.raises(DamagedDownloadError, match="with the sha1 .* and should give"):
        made(tmp_path / "again", tokenizer)
    assert not (tmp_path / "again/train").exists()


@pytest.mark.parametrize("name", [STATE_FILE, RECORD_FILE, REVISION_FILE])
@pytest.mark.parametrize(
    "content", [b'{"train": {"docu', b"[" * 100_000, b"7", b'{"train": 7}', b"\xff", b" " * 2_000_000]
)
def test_cut_record_of_tokenization_is_named(
    texts: HubServer, tmp_path: Path, root: Path, name: str, content: bytes
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"/out/{name} is not what a tokenization writes.*remove it"):
        made(tmp_path / "out", str(root / "end"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"revision": "gone"}, "no such revision: dataset 'people/letters' at revision 'gone'"),
        ({"revision": ""}, "revision='': give a text"),
        ({"name": "table"}, "people/letters has no part 'table'; did you mean 'tables'?"),
        ({"tokenizer": "people--words"}, "tokenizer='people--words' .* is no name of a repository"),
        ({"tokenizer": "people/nothing"}, "tokenizer='people/nothing' is no folder.* The hub has no model 'people/not"),
    ],
)
def test_missing_part_of_hub_is_named(texts: HubServer, tmp_path: Path, changes: dict[str, str], message: str) -> None:
    fields = {"id": REPO, "cache_path": str(tmp_path / "out"), "tokenizer": MODEL, "format": None} | changes
    with pytest.raises((ValueError, DownloadError), match=message):
        tokenize(HfTokenizeConfig(**fields))
    assert not (tmp_path / "out/train").exists()


def test_offline_host_is_told(texts: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="'people/letters' .* cannot be listed, since HF_HUB_OFFLINE is set"):
        made(tmp_path / "out")
    with pytest.raises(ValueError, match=f"tokenizer='{MODEL}' .* cannot be listed, since HF_HUB_OFFLINE is set"):
        stored_tokenizer(MODEL, "tokenizer", str(tmp_path / "out"))
    assert not texts.asked
    (snapshot_with(tmp_path, texts.models[MODEL]) / "tokenizer").mkdir()
    folder = Path(stored_tokenizer(MODEL, "tokenizer", str(tmp_path / "out")))
    assert (folder / "tokenizer.json").read_bytes() == texts.models[MODEL]["tokenizer.json"] and not texts.asked


def snapshot_with(tmp_path: Path, files: dict[str, bytes]) -> Path:
    """Give this host a copy of the tokenizer with these files."""
    snapshot = tmp_path / "no-cache/models--people--words/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in files.items():
        (snapshot / name).write_bytes(content)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize("link", ["tokenizer_config.json", "chat_template.jinja"])
def test_tokenizer_of_which_this_host_has_part_is_fetched(texts: HubServer, tmp_path: Path, link: str) -> None:
    here = {name: b"other" for name in texts.models[MODEL] if name != link}
    (snapshot_with(tmp_path, here) / link).symlink_to("nowhere")
    folder = Path(stored_tokenizer(MODEL, "tokenizer", str(tmp_path / "out")))
    assert {name: (folder / name).read_bytes() for name in texts.models[MODEL]} == texts.models[MODEL]


# ---- tokenizers in the store


def test_tokenizer_is_fetched_once_by_many_steps(texts: HubServer, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda n: stored_tokenizer(MODEL, "tokenizer", str(tmp_path / f"o{n}")), range(8)))
    assert found == {str(tmp_path / "bucket/.tradewind/tokenizers/people--words")}
    [folder] = map(Path, found)
    assert {name: (folder / name).read_bytes() for name in texts.models[MODEL]} == texts.models[MODEL]
    assert json.loads((folder / "provenance.json").read_text())["commit"] == COMMIT
    assert read_record(str(folder)).lease is not None and asked(texts, "/tokenizer.json") == 1


def test_tokenizer_is_below_prefix_of_its_run(
    texts: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STEP_VARIABLE, "tokenized/a/b-012345")
    folder = stored_tokenizer(MODEL, "tokenizer", str(tmp_path / "run/tokenized/a/b-012345"))
    assert folder == str(tmp_path / "run/.tradewind/tokenizers/people--words")


COPIER = """
import os, signal, sys
from functools import partial
from tradewind.attempts import renewal
from tradewind.datasets import hub_tokenizers
renewal.make_copy = partial(renewal.make_copy, heartbeat_s=0.3)
calls, held = 0, hub_tokenizers.check_still_held
def end(owner):
    global calls
    calls += 1
    if calls == int(sys.argv[1]):
        os.kill(os.getpid(), int(sys.argv[2]))
    held(owner)
hub_tokenizers.check_still_held = end
print(hub_tokenizers.stored_tokenizer("people/words", "tokenizer", sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "calls"), [(signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGSTOP, 2)])
def test_tokenizer_of_dead_or_frozen_copier_is_copied_again(
    texts: HubServer, tmp_path: Path, stop: int, calls: int
) -> None:
    out = str(tmp_path / "out")
    command = [sys.executable, "-c", COPIER, str(calls), str(int(stop)), out]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as copier:
        os.waitid(os.P_PID, copier.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert not Path(tmp_path, "bucket/.tradewind/tokenizers/people--words/provenance.json").exists()
        folder = Path(stored_tokenizer(MODEL, "tokenizer", out))
        copier.send_signal(signal.SIGCONT)
        printed = copier.communicate()[0]
    assert stop == signal.SIGKILL or printed.splitlines()[-1] == str(folder)
    assert {name: (folder / name).read_bytes() for name in texts.models[MODEL]} == texts.models[MODEL]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, f"tokenizer='{MODEL}' .*tokenizer.json answered 404"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            f"tokenizer {MODEL} at .*{COMMIT}: tokenizer.json is a poi",
        ),
        (b'{"model": ', f"tokenizer {MODEL} at .*{COMMIT}: tokenizer.json is no tokenizer"),
    ],
)
def test_tokenizer_is_fetched_again_after_failure(
    texts: HubServer, tmp_path: Path, content: bytes | None, message: str
) -> None:
    good, out = texts.models[MODEL]["tokenizer.json"], str(tmp_path / "out")
    if content is None:
        texts.fail("tokenizer.json", status(404))
    else:
        texts.models[MODEL]["tokenizer.json"] = content
    with pytest.raises(ValueError, match=message):
        stored_tokenizer(MODEL, "tokenizer", out)
    texts.models[MODEL]["tokenizer.json"] = good
    copy = Path(stored_tokenizer(MODEL, "tokenizer", out), "tokenizer.json")
    assert copy.read_bytes() == good
    copy.write_bytes(good[:-9])
    with pytest.raises(ValueError, match=rf"'{MODEL}' \(remove {copy.parent} to copy it again\): .* is no tok"):
        tokenizer_files(MODEL, "tokenizer", out)
    copy.unlink()
    with pytest.raises(ValueError, match=f"{copy.parent} has no tokenizer.json any more: remove the folder"):
        tokenizer_files(MODEL, "tokenizer", out)


@pytest.mark.parametrize(("short", "message"), [(1, "tokenizer.json has more than"), (0, "bytes of files of tok")])
def test_oversized_tokenizer_is_not_fetched(
    texts: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int, message: str
) -> None:
    large = texts.models[MODEL]["tokenizer.json"]
    texts.models[MODEL] |= {f"vocab{n}.txt": large for n in range(4)}
    monkeypatch.setattr("tradewind.datasets.hub_tokenizers.LARGE", len(large) - short)
    with pytest.raises(ValueError, match=f"tokenizer='{MODEL}' .*{message}"):
        stored_tokenizer(MODEL, "tokenizer", str(tmp_path / "out"))
    assert not asked(texts, ".txt") and not asked(texts, ".json")


PADDING = {
    "strategy": "BatchLongest",
    "pad_to_multiple_of": None,
    "direction": "Right",
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<s>",
}
CHARSMAP = {"type": "Precompiled"}
TEMPLATE = {
    "type": "TemplateProcessing",
    "pair": [],
    "special_tokens": {},
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer.json": b""}, "tokenizer.json is no tokenizer (Cannot instantiate"),
        ({"tokenizer.json": b"[" * 100_000}, "tokenizer.json is no tokenizer ("),
        ({"tokenizer.json": b"{}"}, "tokenizer.json is no tokenizer ("),
        ({"tokenizer.json": b"version https://git-lfs.github.com/spec/v1\n"}, "tokenizer.json is a pointer of Git LFS"),
        ({"padding": PADDING | {"strategy": {"Fixed": 1 << 31}}}, "tokenizer.json fills each text up with padding"),
        ({"padding": PADDING | {"pad_to_multiple_of": 1 << 31}}, "tokenizer.json fills each text up with padding"),
        ({"tokenizer_config.json": b"[" * 100_000}, "tokenizer_config.json is no JSON object (maximum recursion depth"),
        ({"tokenizer_config.json": b"[]"}, "tokenizer_config.json is no JSON object"),
        ({"normalizer": CHARSMAP | {"precompiled_charsmap": "AAAA"}}, "is no tokenizer (Precompiled: "),  # a panic
        ({"normalizer": CHARSMAP | {"precompiled_charsmap": "/////w=="}}, "of 4,294,967,295 bytes"),  # an abort
        ({"post_processor": TEMPLATE}, "tokenizer.json is no tokenizer (no entry found for key)"),  # a panic later
        ({"vocab.txt": b" " * (65 << 20)}, "/vocab.txt has more than 67,108,864 bytes"),
    ],
)
def test_hostile_tokenizer_refused_by_name(tmp_path: Path, root: Path, files: dict[str, Any], message: str) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for file in (root / "end").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    if not any("." in name for name in files):  # fields of tokenizer.json
        whole = json.loads((folder / "tokenizer.json").read_bytes())
        files = {"tokenizer.json": json.dumps(whole | files).encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (tmp_path / "a.jsonl").write_bytes(lines(["a"]))
    with pytest.raises(ValueError, match=f"tokenizer.*{re.escape(message)}"):
        tokenize(config(tmp_path, [str(tmp_path / "a.jsonl")], "out", "tokenizer", allow_test_in_train=True))
    assert not (tmp_path / "out").exists()


# ---- splits

TREE = (
    ".gitattributes", "README.md", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
    "data/dev-00000-of-00001.parquet", "data/notes.csv", "en/test.jsonl", "en/x.jsonl.gz", "dev/a.jsonl.zst",
)  # fmt: skip
HIDDEN = [
    f"data/{name}" for name in ("train.jsonl", ".train.jsonl", "._train.jsonl", ".x/train.jsonl", "a/.x/.train.jsonl")
]
LAYOUTS: list[tuple[list[str], str, str | None]] = [
    ([*TREE], "", None),
    ([*TREE], "configs:\n- config_name: en\n  data_dir: en\n- config_name: x\n  data_files: data/*\n", "en"),
    ([*TREE], "configs:\n- config_name: 'on'\n  data_files: dev/*\n- {config_name: y, default: true}\n", "on"),
    ([*TREE], "configs:\n- config_name: x\n  data_files: [en/x*, dev/*]\n", None),
    ([*TREE], "configs:\n- config_name: x\n  data_files: [{split: a, path: '**/*-of-00002*'}]\n", None),
    (["train/a.jsonl", "my-dev/b.jsonl", "testing/c.jsonl", "other/d.jsonl"], "", None),
    (["a_train_1.jsonl", "val.jsonl", "unseen.jsonl", "x/eval-2.jsonl"], "", None),
    (["b.json", "a/c.json.gz", "__x__/d.json", "config.json"], "", None),
    (["a.parquet", "b.jsonl", "c.jsonl", "LICENSE"], "", None),
    ([*TREE, "__x__/a.jsonl"], "configs:\n- config_name: x\n  data_files: [__x__/*, '**/a.*']\n", None),
    (["a.parquet", "b.jsonl"], "", None),
    (HIDDEN, "", None),
    ([*HIDDEN, "README.md"], "configs:\n- config_name: x\n  data_files: [data/**, data/.x/*]\n", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "head", "part"), LAYOUTS)
def test_splits_are_those_of_the_datasets_library(
    tmp_path: Path, names: list[str], head: str, part: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import load_dataset_builder

    readme = f"---\nlicense: mit\n{head}---\n# Text\n" if head else ""
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(readme if name == "README.md" else '{"text": "a"}\n')
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    files = load_dataset_builder(str(tmp_path), part).config.data_files
    theirs = {str(split): [os.path.relpath(path, tmp_path) for path in paths] for split, paths in files.items()}
    visible = [name for name in names if not name.startswith(".")]
    assert split_files(visible, readme, part, REPO) == {
        split: [path for path in paths if not path.endswith(".csv")] for split, paths in theirs.items()
    }


@pytest.mark.parametrize(
    ("names", "head", "part", "message"),
    [
        ([], "", None, "has no data files"),
        ([], "# empty", None, "has no data files"),
        (["a.csv", "b.csv", "c.jsonl"], "", None, "its split 'train' has files such as 'a.csv'. Only .jsonl, "),
        (["a.jsonl.bz2"], "", None, "'a.jsonl.bz2' has an unknown ending"),
        (["train.jsonl", "dev.JSONL"], "", None, "'dev.JSONL' has an unknown ending"),
        (["letters.py", "a.jsonl"], "", None, "is made by its script letters.py"),
        (["train/a.jsonl", "dev/b.parquet"], "", None, "has splits of different kinds of files"),
        (["a.jsonl"], "", "en", "has no part 'en'; there are default."),
        (["a.jsonl"], "configs:\n- config_name: a\n- config_name: b\n", None, "has several parts: .* 'a', 'b'"),
        (["a.jsonl"], "configs:\n- config_name: a\n  data_files: b*\n", None, "which no file matches"),
        (["a.jsonl"], "configs:\n- config_name: a\n  data_dir: b\n", None, "has no data files in b"),
        (["a.jsonl"], "configs:\n- config_name: a\n  data_files: [{split: a}]\n", None, "which is no split"),
        (["a.jsonl"], "configs: {a: b}\n", None, "are no list of parts"),
        (["a.jsonl"], "a: &x [1]\nconfigs: [*x]\n", None, r"the alias \*x is not supported"),
        (["a.jsonl"], "a: [\n", None, "cannot be read"),
        (["a.jsonl"], "a: b\n" + "#" * (4 << 20), None, "has more than 4,194,304 bytes"),
        (
            [f"{n}.jsonl" for n in range(9000)],
            f"configs: [{{config_name: a, data_files: [{'x*,' * 9000}]}}]",
            None,
            "globs",
        ),
        (["a.jsonl"], 'configs: [{config_name: "a\\e[2J", data_files: "\\e"}]', "b", r"there are a\?\[2J"),
        (["a.jsonl"], "a: " + "[" * 100_000, None, "nested more than 20 deep"),
        (["a.jsonl"], "a: [" + "[]," * 300_000 + "]\n", None, "more than 200,000 values"),
    ],
)
def test_unsupported_layout_refused(names: list[str], head: str, part: str | None, message: str) -> None:
    readme = f"---\n{head}\n---\n"[: 4 << 20] if head else ""
    with pytest.raises(HubLayoutError, match=f"people/letters.*{message}") as refusal:
        split_files(names, readme, part, REPO)
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 500
