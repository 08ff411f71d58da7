"""The pipelines of ``dags/`` that begin with data: all their steps in one process, and again, which makes none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import PreparedPython

pytestmark = pytest.mark.slow

MAKE = """
import sys
from pathlib import Path
from tests.dags.making import Maker, load

maker = Maker(Path(sys.argv[1]))
pipeline = load(sys.argv[2])
maker.make(pipeline.last)
first = list(maker.made)
maker.make(pipeline.last)
print("MADE", first, len(maker.made) - len(first))
"""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose name has no word ``test``, since Tradewind refuses to train on test data."""
    return tmp_path_factory.mktemp("store")


def made(python: PreparedPython, folder: Path, dag: str) -> list[str]:
    out, err = python.start(MAKE, str(folder), dag, env={"JAX_COMPILATION_CACHE_DIR": ""}).communicate()
    found = [line for line in out.splitlines() if line.startswith("MADE ")]
    assert found, out + err
    names, again = found[0].removeprefix("MADE ").rsplit(" ", 1)
    assert again == "0", "a second run reuses all"
    return list(json.loads(names.replace("'", '"')))


def output(folder: Path, name: str, file: str = "stats.json") -> Any:
    [path] = folder.glob(f"{name}-??????/{file}")
    return json.loads(path.read_text())


def test_model_is_trained_from_web_pages(python: PreparedPython, folder: Path) -> None:
    names = made(python, folder, "web_to_tokens")
    assert names[0] == "tiny/sources" and names[-1] == "web/evaluate"
    results = output(folder, "web/evaluate", "results.json")
    assert 0 < results["checkpoint"]["loss"] < 6.5
