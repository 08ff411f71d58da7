"""Links in place of folders: no reader of the pages follows one out of the allowed roots.

A page checks an output path or a prefix once; its readers join names of records to it. Each reader here is called for a
root in which the folder of such a record is a link to a readable one of the same form outside, first unconfined, which
shows that it would read it, and then confined to the root.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from tradewind.browsing.access import Access, Stored
from tradewind.browsing.made_by import makers_of
from tradewind.browsing.outputs import describe
from tradewind.datasets.stored_progress import read_progress
from tradewind.evaluation.boards import read_boards
from tradewind.evaluation.results import (
    RECORD_FILE,
    EvaluationRecord,
    Model,
    Score,
    Serving,
    Status,
    TaskRecord,
    read_record,
)
from tradewind.fleet.history import read_pods
from tradewind.plans.stored_versions import list_versions, read_step_config
from tradewind.plans.version_records import list_folders, read_infos
from tradewind.ray_jobs.details import OUTPUT_PATH, JobDetails
from tradewind.recipes.metrics.curves import metrics_path, read_curves
from tradewind.recipes.speedruns.found import read_speedrun_boards
from tradewind.recipes.speedruns.results import RESULTS_FILE
from tradewind.records.attempts import Attempt, AttemptError, write_attempt
from tradewind.records.discovery import ScanLimits, scan_outputs
from tradewind.records.experiment_files import read_experiment_files
from tradewind.records.info_files import INFO_FILE
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.listing import OutputStatus, list_outputs, read_details
from tradewind.records.pins import PINS_FOLDER, pin_path
from tradewind.records.record import Record, RecordState, read_leases, read_records
from tradewind.runtime.pods.timeline import TIMELINE_FILE
from tradewind.storage import Roots
from tradewind.storage.bounded_read import Content
from tradewind.storage.confinement import OUTSIDE, confined_threads, confined_to
from tradewind.storage.files import existing_below, existing_many, list_names, read_contents, write_text
from tradewind.storage.swap import read_stored
from tradewind.tasks.attempt_history import read_attempt_history, read_saves

SECRET: Final = "treasure-of-another-team"
NOW: Final = 1_790_000_000.0
HERE: Final = "train-aaaaaa"
OTHER: Final = "train-bbbbbb"
LIMITS: Final = ScanLimits(9, 9, 9.0)


def write_output(folder: str, text: str) -> None:
    """Write records and results of an output, with ``text`` in each."""
    by = {"script": text}
    write_text(lease_path(folder), Lease("w", NOW, Phase.COMMITTED, attempt=1, by=by, witness="note.txt").to_json())
    version = {"name": "train", "config": {"a": text}, "dependencies": []}
    info = {"name": text, "fn_name": text, "config": {"a": text}, "dependencies": [], "version": version}
    error = AttemptError(text, text, text)
    write_attempt(folder, Attempt(1, text, "c", by, {}, code_commit=text, error=error))
    event = {"event": "preempted", "at": NOW, "slice": text, "sentence": text}
    stages = [{"stage": 1, "name": text, "shards": 1, "rejected": 1}]
    score = Score("acc", 0.5, 0.4, 0.6, 200, 200, 0, 1.0, True, "bootstrap")
    tasks = {text: TaskRecord(text, "1", 0, Status.SUCCEEDED, 200, (score,))}
    record = EvaluationRecord(text, Status.SUCCEEDED, Model("m", text), Serving("e"), 0.0, 1.0, tasks=tasks)
    run = {"eval_loss": 1.0, "model_flops": 1.0, "description": text}
    files: dict[str, Any] = {
        INFO_FILE: info,
        f".attempts/1/{TIMELINE_FILE}": [event],
        ".dataset/progress.json": {"stages": stages, "total_stages": 1},
        ".dataset/00-x.json": [{"shard": 0, "path": text, "rejected": 1, "rejection": text}],
        "checkpoints/step-5/metadata.json": {"step": 5, "timestamp": "2026-09-21T14:13:20+00:00"},
        "metrics.jsonl": {"step": 1, "time": NOW, text: 1.0},
        RECORD_FILE: asdict(record),
        RESULTS_FILE: {"runs": [{"run_info": run}]},
        "note.txt": text,
    }
    for name, value in files.items():
        write_text(f"{folder}/{name}", json.dumps(value) + "\n")


def write_place(root: Path, text: str) -> None:
    """Write a prefix with outputs, a file of an experiment and a pin."""
    for name in (HERE, OTHER, "nested/train-aaaaaa"):
        write_output(f"{root}/{name}", text)
    write_text(f"{root}/experiments/one-abcdef.json", json.dumps({"steps": [], "user": text}))
    write_text(pin_path(str(root), f"{root.parent}/root/{HERE}"), "{}")


Reader = Callable[[str], Any]


def attempts(root: str) -> Any:
    output = f"{root}/{HERE}"
    return read_attempt_history(output, Record(), NOW)


def details(root: str) -> Any:
    return read_details([OutputStatus(f"{root}/{HERE}", RecordState.FINISHED, 1, "", "", None)])


def in_threads(root: str) -> Any:
    with confined_threads(2) as pool:
        return list(pool.map(read_stored, [lease_path(f"{root}/{HERE}")] * 4))


CASES: Final[dict[str, tuple[str, Reader]]] = {
    "experiments": ("experiments", lambda root: read_experiment_files([root])),
    "experiments of a list": ("experiments", list_outputs),
    "attempts": (f"{HERE}/.attempts", attempts),
    "timelines": (f"{HERE}/.attempts/1", attempts),
    "commits": (f"{HERE}/.attempts", details),
    "progress": (f"{HERE}/.dataset", lambda root: read_progress(f"{root}/{HERE}")),
    "neighbors": (OTHER, lambda root: list_versions(f"{root}/{HERE}")),
    "config": (HERE, lambda root: read_step_config(f"{root}/{HERE}", Roots((root,)))),
    "infos": (HERE, lambda root: read_infos([f"{root}/{HERE}"])),
    "curves": (HERE, lambda root: read_curves(metrics_path(f"{root}/{HERE}"))),
    "evaluation": (HERE, lambda root: read_record(f"{root}/{HERE}")),
    "boards": (HERE, lambda root: read_boards(root, [f"{root}/{HERE}"])),
    "speedruns": (HERE, lambda root: read_speedrun_boards(root, [f"{root}/{HERE}"])),
    "leases": (HERE, lambda root: read_leases([f"{root}/{HERE}"])),
    "records": (HERE, lambda root: read_records([f"{root}/{HERE}"])),
    "makers": (HERE, lambda root: makers_of(Access(None), [f"{root}/{HERE}"])),
    "threads": (HERE, in_threads),
    "contents": (HERE, lambda root: read_contents([f"{root}/{HERE}/note.txt"])),
}  # fmt: skip
"""Name → what is a link, relative to the root, and the reader."""
IF_EXISTING: Final[dict[str, tuple[str, Reader]]] = {
    "folders": (HERE, lambda root: list_folders([f"{root}/{HERE}"])[f"{root}/{HERE}"]),
    "names": (HERE, lambda root: list_names(f"{root}/{HERE}")),
    "objects": (HERE, lambda root: existing_many([f"{root}/{HERE}/metrics.jsonl"])),
    "sentinels": (HERE, lambda root: existing_below({f"{root}/{HERE}": "metrics.jsonl"})),
    "saves": (f"{HERE}/checkpoints", lambda root: read_saves(f"{root}/{HERE}")),
    "pins": (PINS_FOLDER, lambda root: [each for each in list_outputs(root).outputs if each.is_pinned]),
    "scan": ("nested", lambda root: scan_outputs(f"{root}/nested", LIMITS).outputs),
    "related": (HERE, lambda root: describe(Access(None), Stored(f"{root}/{HERE}", True, 0, None, "")).related),
}
"""The same for readers whose answers only tell what exists."""


@pytest.mark.parametrize("name", [*CASES, *IF_EXISTING])
def test_no_reader_follows_a_linked_folder(name: str, tmp_path: Path) -> None:
    place, reader = (CASES | IF_EXISTING)[name]
    root, outside = tmp_path / "root", tmp_path / "outside"
    write_place(root, "own")
    write_place(outside, SECRET)
    (root / place).rename(tmp_path / "before")
    (root / place).symlink_to(outside / place)

    def is_shown() -> bool:
        found = ""
        with suppress(ValueError):  # a refusal
            found = reader(str(root))
        return bool(found) if name in IF_EXISTING else SECRET in repr(found)

    assert is_shown()
    with confined_to(Roots((str(root),))):
        assert not is_shown()
    with confined_to(Roots((str(tmp_path),))):
        assert is_shown(), "a link below a root is followed"


def test_pods_are_read_below_the_roots_only(tmp_path: Path) -> None:
    """The page Fleet reads where the metadata of a cluster's jobs say."""
    job = JobDetails("train-00000000-0-1-abcdef", "RUNNING", metadata={OUTPUT_PATH: f"{tmp_path}/root/{HERE}"})
    write_place(tmp_path / "root", SECRET)
    (tmp_path / "root" / HERE / ".attempts").rename(tmp_path / "attempts")
    (tmp_path / "root" / HERE / ".attempts").symlink_to(tmp_path / "attempts")
    for root, is_shown in ((tmp_path, True), (tmp_path / "root", False)):
        pods = read_pods("c", [job], Roots((str(root),)), NOW)
        assert (SECRET in repr(pods)) == is_shown


def test_folder_replaced_before_the_opening_is_refused(tmp_path: Path) -> None:
    """What counts is where the opened file is: another process replaces its folder after any look at the path."""
    write_text(f"{tmp_path}/root/folder/a", "own")
    write_text(f"{tmp_path}/outside/a", SECRET)
    file = tmp_path / "root" / "folder" / "a"
    lstat = os.lstat

    def replacing(name: Any) -> os.stat_result:
        seen = lstat(name)
        if str(name) == str(file):
            file.parent.rename(tmp_path / "before")
            file.parent.symlink_to(tmp_path / "outside")
        return seen

    with confined_to(Roots((f"{tmp_path}/root",))), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tradewind.storage.bounded_read.os.lstat", replacing)
        [found] = read_contents([str(file)]).values()
    assert found == Content("", OUTSIDE)
