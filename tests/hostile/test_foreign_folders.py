"""Failed attempts never empty a pre-existing folder that a step names as its output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tests.hostile.harness import Outcome, attack_all, expect_success, named
from tests.records.test_found_files import begin, end, work
from tradewind.records.discovery import find_outputs
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
    "precious", "deep/er/precious", ".hidden", ".manifest", "[a]*?", "a::b", "a\nb", "a\\b", " ", "-rf", "~", "ä",
    os.fsdecode(b"not-utf8-\xff"), "x" * 255, "/".join(["d"] * 200), "experiments/table.json",
    "checkpoints/step-1/weights", ".artifact.json",
]  # fmt: skip
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
    contents = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not name.startswith((".executor_", ".attempts", "half")) and (path.is_symlink() or path.is_file()):
            contents[name] = os.readlink(path) if path.is_symlink() else path.read_text()
    return contents


def fail_three_times(step: ResolvedStep) -> list[str]:
    """Run three attempts that write files and fail; return their leftovers when a fourth has begun."""
    for number in range(3):
        claim = begin(step)
        (Path(step.output_path) / f"half-{number}").write_text("half")
        end(step, claim)
    begin(step)
    return sorted(path.name for path in Path(step.output_path).glob("half*"))


def attack_planted(
    plants: Iterable[Plant], call: Callable[[ResolvedStep], Any], sandbox: Path, judge: Callable[[Outcome], None]
) -> None:
    """Check that the call changes none of the entries that each plant leaves in the step's output."""
    step, output = step_of(sandbox)
    numbered = {str(number): plant for number, plant in enumerate(plants)}
    before: dict[str, str] = {}

    def prepare(name: str) -> None:
        numbered[name](output, sandbox / "outside")
        before.clear()
        before.update(entries(output.resolve()))

    def judge_with_entries(outcome: Outcome) -> None:
        judge(outcome)
        after = entries(output.resolve())
        assert after == before, f"{after}, not {before}"

    attack_all(dict.fromkeys(numbered, partial(call, step)), sandbox, judge_with_entries, prepare=prepare)


def test_failed_attempts_remove_only_their_own_leftovers(sandbox: Path) -> None:
    plants = [*map(file, FOREIGN_FILES), *LINKS]
    attack_planted(plants, fail_three_times, sandbox, lambda outcome: outcome.must_be_accepted("[]"))


def test_link_left_by_attempt_is_removed_and_its_target_stays(sandbox: Path) -> None:
    step, output = step_of(sandbox)

    def leave(plant: Plant) -> list[str]:
        claim = begin(step)
        plant(output, sandbox / "outside")
        end(step, claim)
        begin(step)
        return sorted(entries(output))

    expect_success(named(LINKS, leave), sandbox, "[]", prepare=lambda _: output.mkdir(parents=True))


def test_output_linked_to_foreign_folder_does_not_empty_it(sandbox: Path) -> None:
    def linked_to(target: str) -> Plant:
        def plant(output: Path, outside: Path) -> None:
            output.parent.mkdir(parents=True)
            output.symlink_to(target)

        return plant

    targets = [f"{sandbox}/outside", f"{sandbox}/outside/folder", "../../outside", "../../outside/folder"]
    attack_planted(map(linked_to, targets), fail_three_times, sandbox, lambda outcome: None)


def test_oddly_named_folder_does_not_hide_other_outputs(sandbox: Path) -> None:
    own = sandbox / "own"
    odd = ("a::b", "::", "reference::x", "x\ny", os.fsdecode(b"\xff"), "*", "[a]", "-rf", "~", " ")
    names = {ascii(name): name for name in odd}

    def prepare(name: str) -> None:
        for folder in (names[name], f"{names[name]}/deep", "fine"):
            file(f"{folder}/.executor_info")(own, sandbox)

    cases = dict.fromkeys(names, lambda: "fine" in [Path(path).name for path in find_outputs(str(own))])
    expect_success(cases, sandbox, "True", prepare=prepare)
