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
maker.make(getattr(pipeline, sys.argv[3]))
first = list(maker.made)
maker.make(getattr(pipeline, sys.argv[3]))
print("MADE", first, len(maker.made) - len(first))
"""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose name has no word ``test``, since Tradewind refuses to train on test data."""
    return tmp_path_factory.mktemp("store")


def made(python: PreparedPython, folder: Path, dag: str, step: str) -> list[str]:
    out, err = python.start(MAKE, str(folder), dag, step, env={}).communicate()
    found = [line for line in out.splitlines() if line.startswith("MADE ")]
    assert found, out + err
    names, again = found[0].removeprefix("MADE ").rsplit(" ", 1)
    assert again == "0", "a second run reuses all"
    return list(json.loads(names.replace("'", '"')))


def output(folder: Path, name: str, file: str = "stats.json") -> Any:
    [path] = folder.glob(f"{name}-??????/{file}")
    return json.loads(path.read_text())


def test_model_is_trained_from_web_pages(python: PreparedPython, folder: Path) -> None:
    """No other test passes the output of each recipe for data to the next, up to a loss."""
    names = made(python, folder, "web_to_tokens", "evaluated")
    assert len(names) == 15 and names[-2:] == ["web/train", "web/evaluate"]
    removed = output(folder, "web/good")["counts"]
    assert removed["removed_by_quality"] == 60, "all offers"
    assert removed["removed_by_duplicate_document"] >= 40, "the copies"
    assert output(folder, "web/repeated")["counts"]["duplicates"] > 0
    tokens = output(folder, "web/tokens", "tokenization.json")
    assert tokens["train"]["documents"] + tokens["validation"]["documents"] == removed["documents"]
    losses = output(folder, "web/evaluate", "results.json")
    assert 0 < losses["checkpoint"]["loss"] < 6.5
    assert losses["checkpoint"]["loss"] == pytest.approx(losses["hf"]["loss"], abs=1e-3)


def test_filter_is_judged_by_loss_on_held_out_documents(python: PreparedPython, folder: Path) -> None:
    """No other test compares trainings on sets of documents."""
    made(python, folder, "quality_ablation", "comparison")
    [result] = folder.glob("ablation/comparison-??????/.artifact.json")
    losses = json.loads(result.read_text())["runs"]
    assert losses.keys() == {"all", "filtered"} and losses["filtered"] < losses["all"]
    records = [output(folder, f"ablation/tokens_{name}", "tokenization.json") for name in ("all", "filtered")]
    assert records[0]["validation"] == records[1]["validation"]
    assert records[0]["train"]["documents"] > records[1]["train"]["documents"]
