"""Steps that download: what counts in their versions, what they refuse, and their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.hub_server import COMMIT, REPO, TOKEN, Handler, HubServer, hub
from tests.support.waiting import until
from tradewind import ExecutorStep, versioned
from tradewind.recipes.downloads import default_download, download
from tradewind.steps import ExperimentError, InputName, resolve

__all__ = ["hub"]
URL = "https://a.example/x.txt"


def step_of(reference: InputName) -> ExecutorStep:
    assert reference.step is not None
    return reference.step


def version(step: ExecutorStep) -> Any:
    return resolve([step], "/prefix").steps[-1].version


def test_only_name_counts_in_hub_download_version_as_in_marin() -> None:
    plain = version(step_of(default_download("raw/letters", REPO, COMMIT)))
    assert plain["config"] == {}
    assert version(step_of(default_download("raw/letters", REPO, "another", hf_urls_glob=["a"]))) == plain
    counted = version(step_of(default_download("raw/letters", REPO, versioned(COMMIT))))
    assert counted["config"] == {"revision": COMMIT}


def test_version_of_file_download_covers_urls_and_checksums() -> None:
    given: Any = {"urls": [URL], "sha256": {URL: "0" * 64}}
    assert version(download("raw/x", **given))["config"] == given


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: default_download("raw/x", REPO, COMMIT, hf_url_glob=["a"]), "'raw/x'.*did you mean hf_urls_glob"),
        (lambda: default_download("raw/x", REPO, COMMIT, hf_urls_glob="a"), "hf_urls_glob='a'"),
        (lambda: default_download("raw/x", REPO, ""), "revision=''"),
        (lambda: default_download("raw/x", REPO, COMMIT, timeout=3), "the options are hf_urls_glob"),
        (lambda: download("raw/x", []), "'raw/x': urls="),
        (lambda: download("raw/x", [URL], sha256={"https://a.example/y": "0" * 64}), "none of the urls"),
        (lambda: download("raw/x", [URL, "https://b.example/x.txt"]), "would both be x.txt"),
        (lambda: download("raw/x", ["https://a.example/"]), "names the file ''"),
        (lambda: download("raw/x", ["https://a.example/%2e%2e"]), "no path below"),
        (lambda: download("raw/x", ["https://a.example/.attempts"]), "begins with a dot"),
        (lambda: download("raw/x", ["https://me:pass@a.example/x"]), "an address at a.example holds a name or a"),
        (lambda: download("raw/x", ["ftp://a.example/x"]), "ftp://a.example/x' has an unknown scheme"),
        (lambda: download("raw/x", ["x.txt"]), "'x.txt' has an unknown scheme"),
    ],
)
def test_invalid_download_refused_at_step_creation(make: Any, message: str) -> None:
    with pytest.raises((ValueError, ExperimentError), match=message):
        make()


EXPERIMENT = f"""
from tradewind import executor_main
from tradewind.recipes.downloads import default_download

executor_main([default_download("raw/letters", "{REPO}", "0123456", hf_urls_glob=["data/*.jsonl"]).step])
"""


@pytest.mark.slow
def test_download_retry_fetches_only_missing_files(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "experiment.py").write_text(EXPERIMENT)

    def run() -> tuple[int, str]:
        command = [sys.executable, "experiment.py", "--prefix", str(tmp_path / "outputs")]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def refuse_after_other_file(handler: Handler, _: bytes) -> None:
        until(lambda: list(tmp_path.glob("outputs/raw/*/data/a.jsonl")), "the other file")
        handler.answer(b"", 404)

    hub.fail("b.jsonl", refuse_after_other_file)
    code, printed = run()
    assert code != 0
    assert "b.jsonl answered 404: is it there?" in printed
    code, printed = run()
    assert code == 0, printed
    [output] = (tmp_path / "outputs" / "raw").iterdir()
    for name in ("a.jsonl", "b.jsonl"):
        assert (output / "data" / name).read_bytes() == hub.files[f"data/{name}"]
    assert hub.asked[f"/datasets/{REPO}/resolve/{COMMIT}/data/a.jsonl"] == 1, "copied by the first attempt"
    assert json.loads((output / ".artifact.json").read_text())["commit"] == COMMIT
    assert TOKEN not in printed
    assert not any(TOKEN.encode() in file.read_bytes() for file in output.rglob("*") if file.is_file())
