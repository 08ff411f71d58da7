"""Folders of others that a step was given as its own: attempts without a result empty none of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.harness import attack
from tests.records.test_found_files import begin, end, work
from tradewind.records.discovery import OccupiedFolderError, find_outputs
from tradewind.steps import ExecutorStep, ResolvedStep, resolve

Plant = Callable[[Path, Path], None]


def file(name: str) -> Plant:
    def plant(output: Path, outside: Path) -> None:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("precious")

    return plant


def link(name: str, target: str) -> Plant:
    def plant(output: Path, outside: Path) -> None:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).symlink_to(target.format(outside=outside))

    return plant


FOREIGN = [
    file("precious"),
    file("deep/er/precious"),
    file(".hidden"),
    file(".manifest"),
    file("[a]*?"),
    file("a::b"),
    file("a\nb"),
    file("a\\b"),
    file(" "),
    file("-rf"),
    file("~"),
    file("ä"),
    file(os.fsdecode(b"not-utf8-\xff")),
    file("x" * 255),
    file("/".join(["d"] * 200)),
    file("experiments/table.json"),
    file("checkpoints/step-1/weights"),
    file(".artifact.json"),
    link("to-a-file", "{outside}/treasure"),
    link("to-a-folder", "{outside}/folder"),
    link("deep/to-a-folder", "{outside}"),
    link("to-nothing", "{outside}/nothing"),
    link("to-itself", "to-itself"),
    link("up", ".."),
    link("to-the-root", "/"),
]


def step_at(sandbox: Path, override: str = "mine") -> tuple[ResolvedStep, Path]:
    made = ExecutorStep("made", work, {}, override_output_path=override)
    step = resolve([made], str(sandbox / "own/store")).of(made)
    output = Path(step.output_path)
    output.mkdir(parents=True, exist_ok=True)
    return step, output


def entries(folder: Path) -> dict[str, str]:
    """All that lies at a folder, but for records and what attempts of ours have left."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not name.startswith((".executor_", ".attempts", "half")) and (path.is_symlink() or path.is_file()):
            found[name] = os.readlink(path) if path.is_symlink() else path.read_text()
    return found


def fail_three_times(step: ResolvedStep) -> list[str]:
    """Three attempts that leave something and fail; what of theirs is left when a fourth has begun."""
    for number in range(3):
        turn = begin(step)
        (Path(step.output_path) / f"half-{number}").write_text("half")
        end(step, turn)
    begin(step)
    return sorted(path.name for path in Path(step.output_path).glob("half*"))


@pytest.mark.parametrize("number", range(len(FOREIGN)))
def test_attempts_that_fail_remove_what_they_left_and_nothing_else(number: int, sandbox: Path) -> None:
    step, output = step_at(sandbox)
    FOREIGN[number](output, sandbox / "outside")
    before = entries(output)
    done = attack(lambda: fail_three_times(step), sandbox)
    done.must_be_accepted()
    assert done.value == "[]"
    assert entries(output) == before


@pytest.mark.parametrize("plant", FOREIGN[18:], ids=range(len(FOREIGN) - 18))
def test_a_link_that_an_attempt_left_goes_and_what_it_leads_to_stays(plant: Plant, sandbox: Path) -> None:
    step, output = step_at(sandbox)

    def leave_links() -> list[str]:
        turn = begin(step)
        plant(output, sandbox / "outside")
        end(step, turn)
        begin(step)
        return sorted(entries(output))

    done = attack(leave_links, sandbox)
    done.must_be_accepted()
    assert done.value == "[]"


@pytest.mark.parametrize("target", ["{outside}", "{outside}/folder", "../../outside", "../../outside/folder"])
def test_an_output_that_is_a_link_to_a_folder_of_others_empties_it_not(target: str, sandbox: Path) -> None:
    step, output = step_at(sandbox)
    output.rmdir()
    output.symlink_to(target.format(outside=sandbox / "outside"))
    kept = entries(output.resolve())
    attack(lambda: fail_three_times(step), sandbox)
    assert entries(output.resolve()) == kept


OTHERS = [
    "other/.executor_info",
    "other/.executor_status",
    "other/.executor_status.lock",
    "a/b/c/d/.executor_info",
    ".hidden/.executor_info",
    "experiments/nightly-0a1b2c.json",
    ".tradewind/pins/x.json",
    "x::y/.executor_status",
    "[a]/.executor_status",
]


@pytest.mark.parametrize("record", OTHERS)
def test_a_folder_that_holds_outputs_of_others_is_not_claimed(record: str, sandbox: Path) -> None:
    step, output = step_at(sandbox)
    file(record)(output, sandbox / "outside")
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    attack(lambda: begin(step), sandbox).must_be_refused(OccupiedFolderError, mentions=["override_output_path"])
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


ODD_FOLDERS = ["a::b", "::", "reference::x", "x\ny", os.fsdecode(b"\xff"), "*", "[a]", "-rf", "~", " "]


@pytest.mark.parametrize("name", ODD_FOLDERS, ids=range(len(ODD_FOLDERS)))
def test_a_folder_with_an_odd_name_keeps_nobody_from_finding_the_others(name: str, sandbox: Path) -> None:
    work_folder = sandbox / "own"
    for folder in (name, f"{name}/deep", "fine"):
        file(f"{folder}/.executor_info")(work_folder, sandbox)
    found = attack(lambda: [Path(path).name for path in find_outputs(str(work_folder))][-1:], sandbox)
    found.must_be_accepted()
    assert "fine" in [Path(path).name for path in find_outputs(str(work_folder))]
