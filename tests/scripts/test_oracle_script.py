"""``scripts/marin/oracle.py`` separates files that agree with Marin's executor from those that differ."""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from scripts.marin.oracle import main, read_oracle
from tests.marin.checkouts import EXECUTOR, put

PREFIX = "gs://bucket"
RAW = "raw = ExecutorStep('raw', None, {'a': versioned(1)})\n"
TWO = RAW + "executor_main([ExecutorStep('made', None, {'from': output_path_of(raw), 'b': versioned('x')})])\n"
SAME = RAW + "again = ExecutorStep('raw', None, {'a': versioned(1)}, override_output_path='elsewhere')\n"
SAME += "executor_main([raw, again])\n"


def version(name: str, config: dict[str, Any], *dependencies: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a step that Marin hashes."""
    return {"name": name, "config": config, "dependencies": list(dependencies)}


RAW_VERSION = version("raw", {"a": 1})
MADE_VERSION = version("made", {"b": "x", "from": "DEP[0]"}, RAW_VERSION)


def row(versions: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return a step of the oracle and store its version in ``versions``."""
    key = hashlib.md5(json.dumps(made, sort_keys=True).encode(), usedforsecurity=False).hexdigest()[:12]
    versions[key] = {**made, "dependencies": [row(versions, other)["version"] for other in made["dependencies"]]}
    return {"version": key, "output_path": f"{PREFIX}/{made['name']}-{key[:6]}"}


@pytest.fixture
def oracle(tmp_path: Path) -> Path:
    versions: dict[str, Any] = {}
    rows = [row(versions, RAW_VERSION), row(versions, MADE_VERSION)]
    files = {
        "experiments/two.py": {"steps": rows},
        "experiments/same.py": {"steps": [rows[0], {**rows[0], "output_path": f"{PREFIX}/elsewhere", "dup": True}]},
        "experiments/over.py": {"steps": [{**rows[0], "output_path": f"{PREFIX}/here"}]},
        "experiments/no_steps.py": {"status": "error"},
    }
    path = tmp_path / "oracle.json.gz"
    content = {"meta": {"prefix": PREFIX}, "versions": versions, "files": files}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def checked(root: Path, oracle: Path, *more: str, **files: str) -> int:
    """Check a checkout of ``files``; return the exit code."""
    for name, text in files.items():
        put(root / f"checkout/experiments/{name}.py", EXECUTOR + text)
    return main(["--checkout", str(root / "checkout"), "--oracle", str(oracle), *more])


def test_agreeing_checkout_passes_with_refused_or_unknown_files(
    tmp_path: Path, oracle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {"other": TWO, "no_steps": RAW + "executor_main([raw])\n", "bad": "executor_main(1 / 0)\n"}
    assert checked(tmp_path, oracle, two=f"print('mine')\n{TWO}", same=SAME, **others) == 0
    output = capsys.readouterr().out
    assert "refused  experiments/bad.py:2 cannot become a DAG: ZeroDivisionError" in output
    assert "4 files loaded" in output and "1 refused. Of those loaded, 2 are not in the oracle" in output
    assert output.endswith("2 have all of its steps and no other, 0 differ. 3 steps agree, 0 differ.\n")
    assert "mine" not in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "same", "missing", "others"),
    [
        (TWO.replace("'x'", "'y'"), 1, 1, 1),
        (TWO.replace("versioned(1)", "versioned(2)"), 0, 2, 2),
        (RAW + "executor_main([raw])\n", 1, 1, 0),
        (TWO + "executor_main([ExecutorStep('more', None, None)])\n", 2, 0, 1),
        (TWO.replace("'made', None,", "override_output_path='here', name='made', fn=None, config="), 1, 1, 1),
    ],
)
def test_loaded_file_with_other_steps_is_reported_with_paths(
    tmp_path: Path, oracle: Path, capsys: pytest.CaptureFixture[str], text: str, same: int, missing: int, others: int
) -> None:
    assert checked(tmp_path, oracle, "--json", two=text, same=SAME) == 1
    (different,) = json.loads(capsys.readouterr().out)["different"]
    assert (different["file"], different["same"]) == ("experiments/two.py", same)
    assert (len(different["missing"]), len(different["others"])) == (missing, others)
    assert checked(tmp_path, oracle) == 1
    output = capsys.readouterr().out
    assert f"differs  experiments/two.py: {missing} of 2 steps\n" in output
    assert output.count("the oracle has    gs://bucket/") == missing
    assert output.count("the checkout has  gs://bucket/") == others


@pytest.mark.slow
def test_explicit_output_path_does_not_hide_version_change(
    tmp_path: Path, oracle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "executor_main([ExecutorStep('raw', None, {'a': versioned(1)}, override_output_path='here')])\n"
    assert checked(tmp_path, oracle, "--json", over=text) == 0
    capsys.readouterr()
    assert checked(tmp_path, oracle, "--json", over=text.replace("versioned(1)", "versioned(2)")) == 1
    (different,) = json.loads(capsys.readouterr().out)["different"]
    assert different["missing"] == different["others"] == [f"{PREFIX}/here"]


def test_files_find_the_oracles_prefix(
    tmp_path: Path, oracle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MARIN_PREFIX", raising=False)
    text = "import os\nexecutor_main([ExecutorStep(os.environ['MARIN_PREFIX'][5:], None, None)])\n"
    assert checked(tmp_path, oracle, other=text) == 0
    assert "1 files loaded" in capsys.readouterr().out
    assert "MARIN_PREFIX" not in os.environ
    assert not logging.root.manager.disable


@pytest.mark.parametrize(
    "content", [b"", b"{}", gzip.compress(b"[]", mtime=0), gzip.compress(b'{"meta": {}}', mtime=0)]
)  # the test's name would contain the time, and all processes of the suite must collect equal names
def test_invalid_oracle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    path = tmp_path / "oracle"
    path.write_bytes(content)
    assert checked(tmp_path, path, two=TWO) == 2
    assert f"{path} is no oracle: " in capsys.readouterr().err


def test_invalid_checkout_is_refused(tmp_path: Path, oracle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--checkout", str(tmp_path), "--oracle", str(oracle)]) == 2
    assert f"{tmp_path} is no checkout of Marin" in capsys.readouterr().err
    assert read_oracle(oracle).steps("experiments/unknown.py") is None
