"""Lists of outputs for users: states, producers, pins, sizes and experiments; bounds; hostile records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.outputs import by_task, make_output
from tradewind.records import listing
from tradewind.records.attempts import attempt_path
from tradewind.records.discovery import ScanLimits, scan_outputs
from tradewind.records.experiment_files import parse_experiment, read_experiment_files
from tradewind.records.info_files import write_experiment_info
from tradewind.records.lease import Phase
from tradewind.records.listing import (
    Order,
    OutputFilter,
    experiments_of,
    in_order,
    list_outputs,
    read_details,
    read_sizes,
)
from tradewind.records.manifests import manifest_path
from tradewind.records.pins import Pin, add_pin
from tradewind.records.record import RecordState
from tradewind.rehearsal.cloud.loopback_server import LoopbackServer
from tradewind.storage import pages
from tradewind.storage.bounded_read import Content
from tradewind.storage.files import write_text

SCRIPT = {"script": "/home/ada/sweep.py", "host": "laptop"}


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return a prefix with six outputs of three experiments."""
    prefix = str(tmp_path / "store")
    for value in (1, 2):
        make_output(prefix, "data/clean", value, files={"a.txt": "four", "b.txt": "eight..."})
    make_output(prefix, "train", by=by_task(task="train", map_index=3), end=Phase.FAILED)
    make_output(prefix, "report", end=Phase.RUNNING)
    make_output(prefix, "swept", by=SCRIPT)
    marins = Path(prefix, "raw/web-0a1b2c")
    marins.mkdir(parents=True)
    (marins / ".executor_status").write_text("SUCCESS")
    (marins / "page.html").write_text("<p>")
    write_experiment_info(
        prefix, "exp42", [{"output_path": str(marins)}, {"output_path": "gs://gone/x-1"}], "e.py", "c0"
    )
    return prefix


def test_outputs_are_listed_by_experiment_with_their_state(root: str) -> None:
    listed = list_outputs(root)
    assert [(each.experiment, each.step, each.status.state.value) for each in listed.outputs] == [
        ("sweep", "swept", "finished"),
        ("nightly", "data/clean", "finished"),
        ("nightly", "data/clean", "finished"),
        ("nightly", "report", "at work"),
        ("nightly", "train", "failed"),
        ("exp42", "raw/web", "finished"),
    ]
    assert listed.cuts == () and {len(each.version) for each in listed.outputs} == {6}
    newest, older = listed.outputs[1:3]
    assert (newest.status.since or 0) >= (older.status.since or 0) and newest.version != older.version
    train = listed.outputs[4].status
    assert (train.dag, train.run, train.task, train.map_index) == ("nightly", "manual__1", "train", 3)
    assert listed.outputs[0].status.producer == "script /home/ada/sweep.py on laptop"
    counts = {
        each.name: {state.value: count for state, count in each.states.items()}
        for each in experiments_of(listed.outputs)
    }
    assert counts["nightly"] == {"finished": 2, "failed": 1, "at work": 1} and list(counts) == [
        "exp42",
        "nightly",
        "sweep",
    ]


def test_size_and_commit_come_from_manifest_and_attempt(root: str) -> None:
    clean = [each.status for each in list_outputs(root).outputs if each.step == "data/clean"]
    Path(clean[0].output_path, "later.txt").write_text("not in the manifest")
    file = Path(attempt_path(clean[0].output_path, 1))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"code_commit": "abc123"}))
    numbers = '{"eval": {"loss": 1.66412, "n": [3]}, "name": "x", "ok": true, "bpb": NaN, "size": 4194304, "more": 1}'
    Path(clean[0].output_path, ".artifact.json").write_text(numbers)
    Path(clean[1].output_path, ".artifact.json").write_text("{")
    details = read_details(clean)
    assert [(each.size_bytes, each.files, each.commit) for each in details] == [(12, 2, "abc123"), (12, 2, None)]
    assert [each.result for each in details] == ["eval/loss 1.664, bpb nan, size 4,194,304", ""]


def test_outputs_are_sorted_and_those_without_a_value_come_last(root: str) -> None:
    outputs = list_outputs(root).outputs
    sizes = read_sizes(outputs)
    assert sorted(sizes.size_bytes.values()) == [4, 12, 12] and sizes.cuts == ()
    orders: dict[Order, list[str]] = {
        "size": ["swept", "data/clean", "data/clean", "report", "train", "raw/web"],
        "-size": ["data/clean", "data/clean", "swept", "report", "train", "raw/web"],
        "step": ["data/clean", "data/clean", "raw/web", "report", "swept", "train"],
        "-state": ["swept", "data/clean", "data/clean", "raw/web", "train", "report"],
    }
    for order, steps in orders.items():
        assert [each.step for each in in_order(outputs, order, sizes.size_bytes)] == steps, order
    newest = [each.status.since for each in in_order(outputs, "-since", {})]
    assert newest[:-1] == sorted(filter(None, newest), reverse=True) and newest[-1] is None


def test_sizes_that_take_too_long_are_said_to_lack(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = list_outputs(root).outputs
    monkeypatch.setattr(listing, "_SIZES_AT_ONCE", 1)
    monkeypatch.setattr(listing, "_MAX_SECONDS", -1.0)
    sizes = read_sizes(outputs)
    assert sizes.size_bytes == {} and "The sizes of 0 of 3 finished outputs are known" in sizes.cuts[0]


def test_pin_counts_from_prefix_and_folder_above(root: str) -> None:
    outputs = [each.path for each in list_outputs(root).outputs]
    add_pin(root, Pin(outputs[1], "ada", "2026-01-01T00:00:00"))
    assert [each.path for each in list_outputs(root).outputs if each.is_pinned] == [outputs[1]]
    below = list_outputs(f"{root}/data", [root])
    assert [each.path for each in below.outputs if each.is_pinned] == [outputs[1]]
    assert {each.step for each in below.outputs} == {"clean"}
    assert not any(each.is_pinned for each in list_outputs(f"{root}/data").outputs)


@pytest.mark.parametrize(
    ("chosen", "steps"),
    [
        (OutputFilter(text="CLEAN"), ["data/clean", "data/clean"]),
        (OutputFilter(states=frozenset({RecordState.FAILED, RecordState.AT_WORK})), ["report", "train"]),
        (OutputFilter(producer="laptop"), ["swept"]),
        (OutputFilter(experiment="exp42"), ["raw/web"]),
        (OutputFilter(experiment=""), []),
        (OutputFilter(is_pinned=True), []),
        (OutputFilter(is_pinned=False, text="report"), ["report"]),
        (OutputFilter(file="{root}/experiments/exp42-"), ["raw/web"]),
        (OutputFilter(file="/elsewhere.json"), []),
    ],
    ids=lambda value: None if isinstance(value, list) else str(value)[12:50],
)
def test_filter_selects_outputs(root: str, chosen: OutputFilter, steps: list[str]) -> None:
    if "{root}" in chosen.file:
        [file] = Path(root, "experiments").iterdir()
        chosen = OutputFilter(file=str(file))
    assert [each.step for each in chosen.select(list_outputs(root))] == steps


def test_list_ends_at_its_limit_and_says_so(root: str) -> None:
    listed = list_outputs(root, max_outputs=3)
    assert len(listed.outputs) == 3 and "a list ends at 3 outputs: narrow the prefix" in listed.cuts[0]
    for index in range(5):
        Path(root, f"empty{index}").mkdir()
    assert "ends at 2 folders that are no outputs" in scan_outputs(root, ScanLimits(100, 2, 60.0)).cut
    assert "ends after 0 s" in scan_outputs(root, ScanLimits(1_000, 1_000, 0.0)).cut


def test_folder_of_a_bucket_is_read_by_pages(
    served: tuple[LoopbackServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = served
    list_page = pages.list_page
    monkeypatch.setattr(pages, "list_page", lambda *given, **named: list_page(*given, **named, limit=4))
    made = sorted(make_output(folder, "step", value) for value in range(9))
    for number in range(40):
        write_text(f"{made[0]}/shard-{number:03d}", "")
    found = scan_outputs(folder)
    assert (list(found.outputs), found.cut) == (made, "")
    server.requests.clear()
    assert scan_outputs(made[0]).outputs == () and server.requests["list"] > 10
    server.requests.clear()
    cut = scan_outputs(folder, ScanLimits(4, 0, 60.0))
    assert (list(cut.outputs), cut.cut) == (made[:4], f"only the first 4 names in {folder} are read")
    assert server.requests["list"] < 10
    assert "the time of a search ended after 4 names" in scan_outputs(folder, ScanLimits(99, 99, -1.0)).cut


def test_records_that_take_too_long_are_left_out(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_RECORDS_AT_ONCE", 2)
    monkeypatch.setattr(listing, "_MAX_SECONDS", 0.0)
    assert any("of 6 outputs are shown" in cut or "ends after 0 s" in cut for cut in list_outputs(root).cuts)


def test_files_of_an_output_are_not_listed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records alone say that a folder is an output, which may hold millions of files."""
    listed: list[str] = []
    scan = os.scandir
    monkeypatch.setattr("tradewind.records.discovery.os.scandir", lambda path: (listed.append(path), scan(path))[1])
    outputs = scan_outputs(root).outputs
    assert len(outputs) == 6 and root in listed and set(listed).isdisjoint(outputs)


LEASE = {"worker_id": "w", "timestamp": 1.0, "phase": "committed", "attempt": 1}
HOSTILE = {
    "cut": '{"worker_id": "w", "time',
    "later phase": json.dumps(LEASE | {"phase": "archived"}),
    "later field": json.dumps(LEASE | {"shard_of": [1]}),
    "huge": " " * ((1 << 20) + 1),
    "huge by": json.dumps(LEASE | {"by": {"dag": "d" * 900_000, "run": ["x"], "task": {"a": 1}, "script": 7}}),
    "control": json.dumps(LEASE | {"by": {"dag": "a\x1b[31m\u202e", "run": "r", "task": "\0", "map_index": 1e9}}),
    "surrogate": json.dumps(LEASE | {"by": {"dag": "\ud800", "run": "\udfff"}}),
    "deep": "[" * 100_000,
    "binary": "\udcff\udcfe",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_lease_is_listed_in_bounded_printable_text(tmp_path: Path, text: str) -> None:
    output = tmp_path / "step-0a1b2c"
    output.mkdir()
    (output / ".executor_status.lock").write_bytes(text.encode(errors="surrogateescape"))
    [listed] = list_outputs(str(tmp_path)).outputs
    shown = f"{listed.experiment}{listed.status.producer}{listed.status.job}{listed.status.run}{listed.status.task}"
    assert len(shown) < 2_000 and shown.isprintable() and shown.encode() is not None
    assert read_details([listed.status])[0].size_bytes is None


@pytest.mark.parametrize("text", ["{", "[]", '{"attempt": 1, "files": [{"path": 3}]}', " " * (3 << 20)])
def test_unreadable_manifest_is_reported(root: str, text: str) -> None:
    listed = list_outputs(root).outputs
    status = next(each.status for each in listed if each.step == "swept")
    Path(manifest_path(status.output_path, 1)).write_text(text)
    assert "Of 1 output the size is not known" in read_sizes(listed).cuts[0]
    [details] = read_details([status])
    assert details.size_bytes is None and "cannot be read" in (details.problem or "")


EXPERIMENT = {
    "steps": [{"output_path": "gs://b/a-1/"}],
    "created_date": "2026-01-02",
    "user": "u\x1b[0m",
    "git_commit": None,
}


@pytest.mark.parametrize(
    ("text", "outputs", "problem"),
    [
        (json.dumps(EXPERIMENT), ("gs://b/a-1",), None),
        (json.dumps(EXPERIMENT | {"created_date": None, "ray_job_id": "x"}), ("gs://b/a-1",), None),
        (json.dumps({"steps": []}), (), None),
        (json.dumps({"steps": [{"name": "x"}]}), (), "a step's output_path is missing"),
        (json.dumps({"prefix": "x"}), (), "its steps is missing"),
        ("{", (), "it holds no JSON"),
    ],
)
def test_experiment_file_is_read_or_named(text: str, outputs: tuple[str, ...], problem: str | None) -> None:
    file = parse_experiment("gs://b/experiments/exp-0a1b2c.json", Content(text))
    assert (file.name, file.outputs) == ("exp", outputs)
    assert file.problem is None if problem is None else problem in (file.problem or "")
    assert file.user.isprintable()


def test_newest_experiment_file_names_the_output(tmp_path: Path) -> None:
    folder = tmp_path / "experiments"
    folder.mkdir()
    output = make_output(str(tmp_path), "a", by={"host": "laptop"})
    for name, day in (("old", "01"), ("new", "02"), ("older", "00")):
        fields = {"steps": [{"output_path": output}], "created_date": f"2026-01-{day}"}
        (folder / f"{name}-0a1b2c.json").write_text(json.dumps(fields))
    (folder / "notes.json").write_text("{}")
    Path(os.fsdecode(os.fsencode(folder) + b"/odd\xff-0a1b2c.json")).write_text("{}")
    files = read_experiment_files([str(tmp_path), str(tmp_path / "none")])
    assert files.cut.startswith("1 of 4 files of experiments in ")
    assert [file.name for file in files.files] == ["new", "old", "older"]
    [listed] = list_outputs(str(tmp_path)).outputs
    assert listed.experiment == "new"


def test_files_above_count_if_they_name_an_output_below(tmp_path: Path) -> None:
    below = tmp_path / "team"
    for prefix, name, output in (
        (tmp_path, "ours", below / "a-1"),
        (tmp_path, "theirs", tmp_path / "team2/a-1"),
        (below, "own", tmp_path / "b-1"),
    ):
        write_experiment_info(str(prefix), name, [{"output_path": str(output)}], "e.py", "c0")
    listed = list_outputs(str(below), [str(tmp_path)])
    assert {file.name: file.elsewhere for file in listed.files} == {"own": 1, "ours": 0}
    assert listed.files_left_out == 1
