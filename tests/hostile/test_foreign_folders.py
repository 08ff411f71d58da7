"""Failed attempts never empty a pre-existing folder that a step names as its output."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.hostile.harness import Call, Outcome, attack_all, expect_success
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


FOREIGN_FILES = [
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
]
LINKS = [
    link("to-a-file", "{outside}/treasure"),
    link("to-a-folder", "{outside}/folder"),
    link("deep/to-a-folder", "{outside}"),
    link("to-nothing", "{outside}/nothing"),
    link("to-itself", "to-itself"),
    link("up", ".."),
    link("to-the-root", "/"),
]


def step_of(sandbox: Path) -> tuple[ResolvedStep, Path]:
    made = ExecutorStep("made", work, {}, override_output_path="mine")
    step = resolve([made], str(sandbox / "own/store")).of(made)
    return step, Path(step.output_path)


def entries(folder: Path) -> dict[str, str]:
    """Return all entries of a folder except records and the leftovers of attempts."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not name.startswith((".executor_", ".attempts", "half")) and (path.is_symlink() or path.is_file()):
            found[name] = os.readlink(path) if path.is_symlink() else path.read_text()
    return found


def fail_three_times(step: ResolvedStep) -> list[str]:
    """Run three attempts that write files and fail; return their leftovers when a fourth has begun."""
    for number in range(3):
        turn = begin(step)
        (Path(step.output_path) / f"half-{number}").write_text("half")
        end(step, turn)
    begin(step)
    return sorted(path.name for path in Path(step.output_path).glob("half*"))


def test_failed_attempts_remove_only_their_own_leftovers(sandbox: Path) -> None:
    step, output = step_of(sandbox)
    plants = {str(number): plant for number, plant in enumerate(FOREIGN_FILES + LINKS)}
    before: dict[str, str] = {}

    def prepare(name: str) -> None:
        output.mkdir(parents=True)
        plants[name](output, sandbox / "outside")
        before.clear()
        before.update(entries(output))

    def judge(outcome: Outcome) -> None:
        outcome.must_be_accepted("[]")
        assert entries(output) == before, f"{entries(output)}, not {before}"

    cases: dict[str, Call] = dict.fromkeys(plants, lambda: fail_three_times(step))
    attack_all(cases, sandbox, judge, prepare=prepare)


def test_link_left_by_attempt_is_removed_and_its_target_stays(sandbox: Path) -> None:
    step, output = step_of(sandbox)

    def leave(plant: Plant) -> list[str]:
        turn = begin(step)
        plant(output, sandbox / "outside")
        end(step, turn)
        begin(step)
        return sorted(entries(output))

    cases: dict[str, Call] = {str(number): partial(leave, plant) for number, plant in enumerate(LINKS)}
    expect_success(cases, sandbox, "[]", prepare=lambda _: output.mkdir(parents=True))


def test_output_linked_to_foreign_folder_does_not_empty_it(sandbox: Path) -> None:
    step, output = step_of(sandbox)
    targets = [f"{sandbox}/outside", f"{sandbox}/outside/folder", "../../outside", "../../outside/folder"]
    kept: dict[str, str] = {}

    def prepare(target: str) -> None:
        output.parent.mkdir(parents=True)
        output.symlink_to(target)
        kept.clear()
        kept.update(entries(output.resolve()))

    def judge(outcome: Outcome) -> None:
        assert entries(output.resolve()) == kept

    attack_all(dict.fromkeys(targets, lambda: fail_three_times(step)), sandbox, judge, prepare=prepare)


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


def test_a_folder_that_holds_outputs_of_others_is_not_claimed(sandbox: Path) -> None:
    step, output = step_of(sandbox)

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}

    def prepare(record: str) -> None:
        file(record)(output, sandbox / "outside")
        before.clear()
        before.update(contents())

    def judge(outcome: Outcome) -> None:
        outcome.must_be_refused(OccupiedFolderError, mentions=["override_output_path"])
        assert contents() == before

    before: dict[Path, bytes] = {}
    attack_all(dict.fromkeys(OTHERS, lambda: begin(step)), sandbox, judge, prepare=prepare)


def test_oddly_named_folder_does_not_hide_other_outputs(sandbox: Path) -> None:
    own = sandbox / "own"
    names = {
        ascii(name): name
        for name in ("a::b", "::", "reference::x", "x\ny", os.fsdecode(b"\xff"), "*", "[a]", "-rf", "~", " ")
    }

    def prepare(name: str) -> None:
        for folder in (names[name], f"{names[name]}/deep", "fine"):
            file(f"{folder}/.executor_info")(own, sandbox)

    cases = dict.fromkeys(names, lambda: "fine" in [Path(path).name for path in find_outputs(str(own))])
    expect_success(cases, sandbox, "True", prepare=prepare)
