"""Downloads to a store from hubs and servers with faults: every copy is complete and correct."""

from __future__ import annotations

import hashlib
import json
import os
import time
import traceback
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.hub_server import COMMIT, REPO, TOKEN, Fault, HubServer, cut, hub, status, whole, wrong
from tests.support.http_server import serving
from tradewind.datasets.downloads import (
    LIST_FILE,
    Copies,
    FilesDownloadConfig,
    HubDownloadConfig,
    download,
    download_files,
    download_hf,
    read_store,
)
from tradewind.datasets.http_reader import (
    CHUNK_BYTES,
    MAX_FAILURES,
    MAX_RETRY_AFTER_S,
    HttpReader,
    pause_s,
    retry_after_s,
)
from tradewind.datasets.source_files import DamagedDownloadError, DownloadError, SourceFile, check_name
from tradewind.rehearsal.local.processes import free_port

__all__ = ["hub"]
DATA = ("data/a.jsonl", "data/b.jsonl")


def config(output: Path, *globs: str, revision: str = COMMIT, repo: str = REPO) -> HubDownloadConfig:
    return HubDownloadConfig(repo, revision, str(output), list(globs))


def copies(output: Path) -> dict[str, bytes]:
    """Return the files that a reader sees: those not hidden, without the provenance."""
    return {
        str(file.relative_to(output)): file.read_bytes()
        for file in output.rglob("*")
        if file.is_file() and not file.name.startswith(".") and file.name != "provenance.json"
    }


def shown(server: HubServer) -> dict[str, bytes]:
    return {name: content for name, content in server.files.items() if not name.startswith(".")}


def test_repository_downloaded_without_hidden_files(hub: HubServer, tmp_path: Path) -> None:
    result = download_hf(config(tmp_path, revision="0123456"))
    assert copies(tmp_path) == shown(hub)
    assert result == {"files": 4, "bytes": sum(map(len, shown(hub).values())), "commit": COMMIT}
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert (provenance["dataset"], provenance["version"], provenance["commit"]) == (REPO, "0123456", COMMIT)
    assert len(provenance["links"]) == 4


@pytest.mark.parametrize(
    ("glob", "files"),
    [
        ("data/*.jsonl", DATA),
        ("data/**", (*DATA, "data/old/c.jsonl")),
        ("**/c.jsonl", ("data/old/c.jsonl",)),
        ("README.md", ("README.md",)),
    ],
)
def test_globs_choose_files(hub: HubServer, tmp_path: Path, glob: str, files: tuple[str, ...]) -> None:
    download_hf(config(tmp_path, glob))
    assert sorted(copies(tmp_path)) == sorted(files)


def test_unmatched_glob_is_reported_and_no_match_at_all_refused(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download_hf(config(tmp_path, "README.md", "nothing/*"))
    assert "matches 'nothing/*'" in capsys.readouterr().out
    with pytest.raises(DownloadError, match=r"None of the 4 files .* it has README.md, data/a.jsonl"):
        download_hf(config(tmp_path / "none", "nothing/*"))
    assert not (tmp_path / "none").exists(), "no file was written"


@pytest.mark.parametrize("after", [0, 1, CHUNK_BYTES, 300_000, 559_999])
def test_cut_download_continues_at_last_chunk(hub: HubServer, tmp_path: Path, after: int) -> None:
    pauses: list[float] = []
    hub.fail("data/a.jsonl", cut(after), cut(7))
    download_hf(config(tmp_path, "data/a.jsonl"), pause=pauses.append)
    assert copies(tmp_path) == {"data/a.jsonl": hub.files["data/a.jsonl"]}
    starts = [int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0 for asked in hub.ranges]
    read_on = after // CHUNK_BYTES * CHUNK_BYTES
    assert starts == [0, read_on, read_on]
    assert pauses == [1.0, 2.0] if read_on == 0 else [1.0, 1.0]


def shifted(handler: Any, content: bytes) -> None:
    """Send a range that was not requested."""
    handler.answer(content[4:], 206, {"Content-Range": f"bytes 4-{len(content) - 1}/{len(content)}"})


@pytest.mark.parametrize(("answer", "reads"), [(whole, 2), (shifted, 2)])
def test_answer_to_another_range_is_not_used_as_it_is(
    hub: HubServer, tmp_path: Path, answer: Fault, reads: int
) -> None:
    hub.fail("data/a.jsonl", cut(300_000), answer)
    download_hf(config(tmp_path, "data/a.jsonl"), pause=lambda _: None)
    assert copies(tmp_path) == {"data/a.jsonl": hub.files["data/a.jsonl"]}
    assert len(hub.ranges) == reads, "nothing was damaged, so nothing is read again"


def test_busy_hub_is_retried_after_its_delay(hub: HubServer, tmp_path: Path) -> None:
    pauses: list[float] = []
    hub.fail(f"/revision/{COMMIT}", status(429, "3"))
    hub.fail(f"/tree/{COMMIT}", status(503))
    hub.fail("README.md", status(429, "5"), status(503))
    download_hf(config(tmp_path, "README.md"), pause=pauses.append)
    assert pauses == [3.0, 1.0, 5.0, 2.0]


def test_download_from_broken_server_fails_and_leaves_nothing(hub: HubServer, tmp_path: Path) -> None:
    pauses: list[float] = []
    hub.fail("README.md", *[status(503)] * 20)
    with pytest.raises(DownloadError, match=rf"README.md cannot be read: it answered 503; tried {MAX_FAILURES + 1}"):
        download_hf(config(tmp_path, "README.md"), pause=pauses.append)
    assert copies(tmp_path) == {}
    assert len(pauses) == MAX_FAILURES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data/a.jsonl", "README.md"])
def test_damaged_bytes_are_read_again_and_never_shown(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    hub.fail(name, wrong(b"x" * len(hub.files[name])))
    download_hf(config(tmp_path, name))
    assert copies(tmp_path) == {name: hub.files[name]}
    assert "Reading it again" in capsys.readouterr().out
    hub.fail(name, *[wrong(b"x" * len(hub.files[name]))] * 3)
    with pytest.raises(DamagedDownloadError, match="and should give"):
        download_hf(config(tmp_path / "again", name))
    assert copies(tmp_path / "again") == {}


def test_attempt_after_failure_copies_only_missing_files(hub: HubServer, tmp_path: Path) -> None:
    hub.fail("data/b.jsonl", status(404))
    with pytest.raises(DownloadError, match=r"b.jsonl answered 404"):
        download_hf(config(tmp_path))
    first = copies(tmp_path)
    (tmp_path / "data" / "b.jsonl.0123abcd.part").write_bytes(b"what a killed process left")
    before = hub.asked.copy()
    result = download_hf(config(tmp_path))
    again = {path for path, times in (hub.asked - before).items() if "/resolve/" in path}
    assert again == {f"/datasets/{REPO}/resolve/{COMMIT}/{name}" for name in set(shown(hub)) - set(first)}
    assert copies(tmp_path) == shown(hub)
    assert (result["files"], result["bytes"]) == (4, sum(map(len, shown(hub).values())))


def test_partial_download_of_other_file_list_is_not_reused(hub: HubServer, tmp_path: Path) -> None:
    download_hf(config(tmp_path))
    hub.files["README.md"] = b"# LETTERS\n"
    del hub.files["data/old/c.jsonl"]
    (tmp_path / "mine.txt").write_text("not from the hub")
    hub.files["data/new.jsonl"] = b"of the hub"
    (tmp_path / "data/new.jsonl").write_bytes(b"of others.")
    download_hf(config(tmp_path))
    assert copies(tmp_path) == shown(hub) | {"mine.txt": b"not from the hub"}


def test_foreign_list_file_is_not_overwritten(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / LIST_FILE).write_text("{")
    for size in (1, (16 << 20) + 1):
        os.truncate(tmp_path / LIST_FILE, size)
        with pytest.raises(DownloadError, match=f"{LIST_FILE} .*is not what a download writes"):
            download_hf(config(tmp_path))
        assert (tmp_path / LIST_FILE).stat().st_size == size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repo": "people/nothing"}, r"has no dataset 'people/nothing' at revision .*HF_TOKEN"),
        ({"revision": "gone"}, r"no such revision: dataset 'people/letters' at revision 'gone'"),
        ({"repo": "a/b/c"}, "'a/b/c' is no name of a repository"),
    ],
)
def test_missing_repository_or_revision_is_named(
    hub: HubServer, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(DownloadError, match=message):
        download_hf(config(tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


def test_refused_token_says_what_to_do(hub: HubServer, tmp_path: Path) -> None:
    hub.fail(f"/revision/{COMMIT}", lambda handler, _: handler.answer(b"{}", 403, {"X-Error-Code": "GatedRepo"}))
    with pytest.raises(DownloadError, match="accept them on its page"):
        download_hf(config(tmp_path))
    hub.fail("README.md", status(401))
    with pytest.raises(DownloadError, match=r"answered 401: .* HF_TOKEN"):
        download_hf(config(tmp_path))


@pytest.mark.parametrize(
    ("login", "sent"), [("", f"Bearer {TOKEN}"), ("robot:pw%2Fmark@", f"Basic {b64encode(b'robot:pw/mark').decode()}")]
)
def test_hub_token_or_login_is_sent_to_hub_only_and_no_other_one(
    login: str, sent: str, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("://", f"://{login}"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    hub.fail(f"/revision/{COMMIT}", lambda handler, _: handler.answer(b"", 307, {"Location": handler.path}))
    with serving(HubServer(hub.files)) as behind:
        hub.cdn = behind.url.replace("127.0.0.1", "localhost")
        download_hf(config(tmp_path / "out"))
    assert set(hub.tokens) == {sent}
    assert behind.tokens == [None] * 4
    hub.cdn = ""
    hub.fail("README.md", status(403))
    with pytest.raises(DownloadError) as refused:
        download_hf(config(tmp_path / "again"))
    texts = [str(refused.value).encode(), *(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())]
    assert not any(secret in text for secret in (TOKEN.encode(), b"mark") for text in texts)


def test_other_server_does_not_get_hub_token(hub: HubServer) -> None:
    reader = HttpReader({"Authorization": f"Bearer {TOKEN}"}, "http://hub.example")
    assert list(reader.read(SourceFile("README.md", hub.url_of("README.md")))) == [b"# Letters\n"]
    assert hub.tokens == [None]


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "a\\b", "a//b", "", ".attempts/1.json", "a\nb"])
def test_name_outside_output_or_hidden_refused(name: str) -> None:
    with pytest.raises(DownloadError, match="The hub names the file"):
        check_name(name, "The hub")


@pytest.mark.parametrize("name", ["data/../../outside", "a\u2028b", "a\u202eb", "a\x1b[2Jb"])
def test_unusable_hub_path_is_refused_unless_globs_omit_it(hub: HubServer, tmp_path: Path, name: str) -> None:
    hub.files[name] = b""
    with pytest.raises(DownloadError, match="no path below the output"):
        download_hf(config(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []
    download_hf(config(tmp_path, "data/*.jsonl"))
    assert sorted(copies(tmp_path)) == sorted(DATA)


def test_hub_paths_with_any_kind_of_space_are_copied(hub: HubServer, tmp_path: Path) -> None:
    for space in ("\u00a0", "\u202f", "\u3000", "\u200b", "\u00ad", "\ufeff", " ", "\U0001fae8", "\ue000"):
        hub.files[f"data/a{space}b [1] #%?.jsonl"] = b"{}\n"
    download_hf(config(tmp_path))
    assert copies(tmp_path) == shown(hub)


def test_legacy_marin_download_writes_to_legacy_path(hub: HubServer, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class DownloadConfig:
        hf_dataset_id: str
        revision: str
        gcs_output_path: str
        hf_urls_glob: Any = ()
        hf_repo_type_prefix: str = "datasets"

    download(DownloadConfig(REPO, "0123456", str(tmp_path), ["README.md"]))
    below = tmp_path / "0123456/huggingface.co/datasets" / REPO / "resolve/0123456"
    assert copies(below) == {"README.md": hub.files["README.md"]}
    with pytest.raises(DownloadError, match="no path below the output"):
        download(DownloadConfig(REPO, "../../..", str(tmp_path)))


FILES = {"urls": ["https://a.example/x"], "output_path": "out"}
REPOSITORY = {"hf_dataset_id": REPO, "revision": COMMIT, "gcs_output_path": "out"}


@pytest.mark.parametrize(
    ("kind", "given", "field", "value"),
    [
        (HubDownloadConfig, REPOSITORY, "hf_dataset_id", ""),
        (HubDownloadConfig, REPOSITORY, "revision", ""),
        (HubDownloadConfig, REPOSITORY, "hf_urls_glob", "data/*"),
        (HubDownloadConfig, REPOSITORY, "hf_repo_type_prefix", "dataset"),
        (FilesDownloadConfig, FILES, "urls", []),
        (FilesDownloadConfig, FILES, "urls", "https://a.example/x"),
        (FilesDownloadConfig, FILES, "sha256", {"https://a.example/x": "12"}),
    ],
)
def test_invalid_config_refused_at_creation(kind: Any, given: dict[str, Any], field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}="):
        kind(**(given | {field: value}))


# ---- files by URL


def test_files_come_from_servers_and_stores(hub: HubServer, tmp_path: Path) -> None:
    local = tmp_path / "there.txt"
    local.write_bytes(b"in a store")
    url = hub.url_of("data/a.jsonl")
    checksum = hashlib.sha256(hub.files["data/a.jsonl"]).hexdigest()
    result = download_files(
        FilesDownloadConfig([url, f"file://{local}"], str(tmp_path / "out"), {url: checksum.upper()})
    )
    assert copies(tmp_path / "out") == {"a.jsonl": hub.files["data/a.jsonl"], "there.txt": b"in a store"}
    assert result == {"files": 2, "bytes": 560_010}
    assert set(hub.tokens) == {None}, "only the hub gets the token"
    with pytest.raises(DamagedDownloadError, match="with the sha256 .* and should give 0000"):
        download_files(FilesDownloadConfig([url], str(tmp_path / "damaged"), {url: "0" * 64}))
    assert copies(tmp_path / "damaged") == {}


@pytest.mark.parametrize(("first", "then"), [('"the-only"', '"another"'), ("", "")])
def test_http_read_refuses_file_that_may_be_replaced(hub: HubServer, first: str, then: str) -> None:
    hub.etag = first
    hub.fail("a.jsonl", cut(300_000))
    reader = HttpReader(pause=lambda _: setattr(hub, "etag", then))
    with pytest.raises(DownloadError, match="it may be another file than at first"):
        list(reader.read(SourceFile("a.jsonl", hub.url_of("data/a.jsonl"))))


def test_store_read_refuses_file_overwritten_during_read(tmp_path: Path) -> None:
    """A store reads each part of a file separately, from the version that exists at that moment."""
    there = tmp_path / "there.txt"
    there.write_bytes(b"a" * 3 * CHUNK_BYTES)
    parts = read_store(SourceFile("there.txt", str(there)))
    assert next(parts) == b"a" * CHUNK_BYTES
    there.write_bytes(b"b" * (3 * CHUNK_BYTES + 1))
    with pytest.raises(DownloadError, match="there.txt changed while it was read"):
        list(parts)
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nothing", ""):
        with pytest.raises(DownloadError, match=f"/{name} is no file"):
            list(read_store(SourceFile("there.txt", f"{tmp_path}/{name}")))


def test_content_encoding_is_refused(hub: HubServer) -> None:
    hub.fail("README.md", lambda handler, content: handler.answer(content, 200, {"Content-Encoding": "br"}))
    with pytest.raises(DownloadError, match="came in the encoding 'br'"):
        list(HttpReader().read(SourceFile("README.md", hub.url_of("README.md"))))


def test_signed_redirect_url_is_not_in_error(hub: HubServer, tmp_path: Path) -> None:
    gone = f"http://127.0.0.1:{free_port()}/file?Signature=s3cret"
    hub.fail("README.md", *[lambda handler, _: handler.answer(b"", 302, {"Location": gone})] * 20)
    with pytest.raises(DownloadError, match=r"Connection refused") as refusal:
        download_hf(config(tmp_path, "README.md"), pause=lambda _: None)
    assert "s3cret" not in "".join(traceback.format_exception(refusal.value))


def test_downloaded_file_with_temp_file_name_survives(hub: HubServer, tmp_path: Path) -> None:
    hub.files["data/x.0123abcd.part"] = b"as it is called at the hub"
    for _ in range(2):
        download_hf(config(tmp_path))
        assert copies(tmp_path) == shown(hub)


def test_interrupted_download_skips_files_not_yet_started(tmp_path: Path) -> None:
    begun: list[str] = []

    def read(file: SourceFile) -> Iterator[bytes]:
        begun.append(file.name)
        if file.name == "0":
            raise KeyboardInterrupt
        time.sleep(0.05)  # time of a download
        yield b""

    with pytest.raises(KeyboardInterrupt):
        Copies(str(tmp_path), read, lambda files, size: None).make([SourceFile(f"{n}", "") for n in range(500)])
    assert len(begun) < 200


def test_pauses_grow_and_are_bounded() -> None:
    assert [pause_s(failures, None) for failures in (1, 2, 3, 12)] == [1.0, 2.0, 4.0, 60.0]
    assert pause_s(1, 10_000.0) == MAX_RETRY_AFTER_S
    assert retry_after_s("7") == 7.0
    assert all(retry_after_s(value) is None for value in ("Wed, 21 Oct 2026 07:28:00 GMT", "-1", None))
