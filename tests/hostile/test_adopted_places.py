"""Adoption never removes its source files and never overwrites pre-existing files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.records.test_adoption import adoption_of
from tests.records.test_found_files import begin, end, work
from tests.support.claims import renewing
from tradewind.records.adoption import NothingToAdoptError, adopt
from tradewind.records.discovery import OccupiedFolderError
from tradewind.steps import ExecutorStep, ResolvedStep, resolve


@pytest.fixture
def step(tmp_path: Path) -> ResolvedStep:
    [resolved] = resolve([ExecutorStep("train", work, {})], str(tmp_path / "store")).steps
    return resolved


@pytest.mark.parametrize(
    "source",
    ["{0}", "file://{0}", "local://{0}//", "{0}/.", "{1}/link", "{0}/checkpoints", "{1}/link/checkpoints", "{1}/store"],
)
def test_adoption_from_own_output_removes_no_leftovers(step: ResolvedStep, source: str, tmp_path: Path) -> None:
    leftover = Path(step.output_path, "checkpoints", "model")
    claim = begin(step)
    leftover.parent.mkdir()
    leftover.write_text("weights")
    end(step, claim)
    (tmp_path / "link").symlink_to(step.output_path)
    with pytest.raises(NothingToAdoptError):
        adopt(adoption_of(step, source.format(step.output_path, tmp_path), copies=True), renewing)
    assert leftover.read_text() == "weights"


def test_copying_adoption_replaces_no_files_and_can_be_repeated(step: ResolvedStep, tmp_path: Path) -> None:
    output, source = Path(step.output_path), tmp_path / "source"
    for folder in (output, source):
        (folder / "part").mkdir(parents=True)
        (folder / "part" / "model").write_text(folder.name)
    with pytest.raises(OccupiedFolderError, match=r"part/model.*Nothing was claimed"):
        adopt(adoption_of(step, str(source), copies=True), renewing)
    assert [path.name for path in output.rglob("*")] == ["part", "model"]
    assert (output / "part" / "model").read_text() == output.name
    shutil.rmtree(output)
    adopt(adoption_of(step, str(source), copies=True), renewing)
    assert (output / "part" / "model").read_text() == "source"
