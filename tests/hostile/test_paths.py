"""Paths with a hidden meaning or an unexpected target, at each entry point."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.hostile.harness import Outcome, attack_all, named
from tradewind import experiment_dag
from tradewind.cli.experiments.outputs import named_output, output_of
from tradewind.cli.experiments.plan import find_version
from tradewind.cli.output import UsageError
from tradewind.plans.prefixes import choose_prefix, roots_in
from tradewind.plans.version_records import Budget, StoredVersions
from tradewind.records.attempts import Attempt
from tradewind.records.info_files import INFO_FILE
from tradewind.records.record import read_record
from tradewind.runtime.run_step import _check_paths
from tradewind.serialization.errors import StepRuntimeError
from tradewind.serialization.spec import StepSpec
from tradewind.steps import ExecutorStep, ExperimentError, RunValues
from tradewind.storage import (
    NO_ROOTS,
    Roots,
    StorageError,
    UnsupportedStoreError,
    UnusablePathError,
    file_system_at,
    open_file,
)
from tradewind.storage.files import read_text, write_text
from tradewind.storage.trees import list_files
from tradewind.tasks.context import ExperimentSettings

SECRET = "hunter2hunter2"
REFUSED = (UnusablePathError, UnsupportedStoreError)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Run Airflow's one-time work, such as reading the host name, before the fork of the children."""
    experiment_dag("warm", [ExecutorStep("warm", None, {})])
    run_of(None)
    importlib.import_module("tradewind_ui.timelines")


NO_PLACES = [
    "reference://::http://127.0.0.1:9/x",
    "reference://::/etc/hostname",
    "simplecache::gs://bucket/x",
    "filecache::s3://bucket/x",
    "blockcache::file:///etc/hostname",
    "zip://inner::/data/archive.zip",
    "tar://inner::gs://bucket/archive.tar",
    "dir::file:///etc",
    "gs://bucket/a::b",
    "/data/a::b",
    "::",
    "a::",
    f"https://me:{SECRET}@host/x",
    f"gs://me:{SECRET}@bucket/x",
    f"s3://{SECRET}@bucket/x",
    f"sftp://me:{SECRET}@host/x",
    "http://169.254.169.254/computeMetadata/v1/",
    "http://127.0.0.1:8080/api",
    "https://host/x",
    "ftp://host/x",
    "ssh://host/x",
    "smb://host/x",
    "hdfs://host/x",
    "webhdfs://host/x",
    "github://org:repo@main/x",
    "git://repo",
    "jlab://host/x",
    "libarchive://x",
    "lakefs://x/y",
    "dvc://x",
    "arrow_hdfs://x",
    "abfs://container/x",
    "adl://container/x",
    "oci://bucket/x",
    "hf://datasets/x",
    "dbfs:///x",
    "dask://x",
    "cached://x",
    "data:text/plain,hello",
    "data:;base64,aGVsbG8=",
    "GS://bucket/x",
    "S3://bucket/x",
    "FILE:///etc/hostname",
    " gs://bucket/x",
    "\tgs://bucket/x",
    "\ngs://bucket/x",
    "://bucket",
    "gs:/bucket/x",
    "s3:bucket",
    "file:/etc/hostname",
    "local:/etc/hostname",
    "memory:x",
    "gs://",
    "gs:///x",
    "s3://",
    "s3a:///x",
    "gs://.executor_status.lock",
    "gs:// bucket/x",
    "gs://buck\net/x",
    "s3://-bucket/x",
    "gs://[a-z]*/x",
    "gs://bucket/../other/x",
    "s3://bucket/a/../../other",
    "gs://bucket/./x",
    "gs://bucket/..",
    "gs://bucket/\0x",
    "/data/\0/etc",
    "\0",
    "/data/\udc80",
    "gs://bucket/\ud800x",
    "/" + "x" * 256,
    "/" + "é" * 128,
    "gs://bucket/" + "x" * 1025,
    "/" + "ab/" * 2000,
    "x" * 1_000_000,
    "",
    None,
    0,
    b"/data",
    ["/data"],
    {"path": "/data"},
    Path("/data"),
]


def must_be_refused(outcome: Outcome) -> None:
    outcome.must_be_refused(*REFUSED, secrets=[SECRET])


def test_what_is_no_place_is_opened_by_nobody(sandbox: Path) -> None:
    attack_all(named(NO_PLACES, file_system_at, lambda path: open_file(path, "wb")), sandbox, must_be_refused)


def test_no_reader_and_no_writer_of_records_opens_it(sandbox: Path) -> None:
    deeds = named(NO_PLACES[:64:4], read_text, read_record, list_files, lambda path: write_text(path, "x"))
    attack_all(deeds, sandbox, must_be_refused)


def test_it_is_no_prefix_and_no_root(sandbox: Path) -> None:
    def prefix(path: Any) -> str:
        return choose_prefix(None, path, {}, None, lambda: None).path

    def is_no_prefix(outcome: Outcome) -> None:
        mentions = ["The run's param 'prefix'"]
        outcome.must_be_refused(*REFUSED, ExperimentError, secrets=[SECRET], mentions=mentions)

    def is_no_root(outcome: Outcome) -> None:
        outcome.must_be_refused(*REFUSED, secrets=[SECRET], mentions=["allowed_roots"])

    paths: list[Any] = NO_PLACES[:-7]
    attack_all(named(paths, prefix), sandbox, is_no_prefix)
    roots = [path for path in paths if not set(path) & {",", "\n"} and path.strip() == path]
    attack_all(named(roots, roots_in), sandbox, is_no_root)


NAMES = [
    "..",
    "../other",
    "a/../../b",
    "a/..",
    "/etc/cron.d/x",
    "//host/x",
    "gs://bucket/x",
    "http://127.0.0.1/x",
    "reference://::http://127.0.0.1/x",
    "a::b",
    "a\0b",
    "\0",
    "a\ud800",
    ".attempts",
    "a/.attempts/1",
    ".tradewind/pins",
    "file:///etc/x",
    f"https://me:{SECRET}@host/x",
    None,
    7,
    b"bytes",
    ["a"],
]


def test_a_name_that_leads_out_of_the_prefix_makes_no_dag(sandbox: Path) -> None:
    deeds = named(NAMES, lambda name: experiment_dag("made", [ExecutorStep(name, None, {})]))
    attack_all(deeds, sandbox, lambda done: done.must_be_refused(ExperimentError, secrets=[SECRET]))


OVERRIDES = [
    *(path for path in NO_PLACES if isinstance(path, str) and "::" in path or path == ""),
    "..",
    "../other",
    "a/../..",
    "./../x",
    ".",
    "./",
    "././.",
    "/",
    "//",
    "/..",
    "/data/../etc",
    "file:///",
    "file:x",
    "gs://bucket",
    "gs://bucket/",
    "gs://bucket//",
    "s3://",
    "memory://",
    "http://host/x",
    "http://[::1",
    "http://[",
    "train:v1",
    "C:\\data",
    "mailto:x",
    f"gs://me:{SECRET}@bucket/x",
    "a\0b",
    "\udcff",
    ".tradewind",
    "x/.attempts",
    5,
    b"x",
]


def test_an_override_that_no_prefix_makes_right_makes_no_dag(sandbox: Path) -> None:
    def make(override: Any) -> None:
        experiment_dag("made", [ExecutorStep("mine", None, {}, override_output_path=override)])

    def judge(outcome: Outcome) -> None:
        outcome.must_be_refused(ExperimentError, secrets=[SECRET], mentions=["'mine'", "override_output_path"])

    attack_all(named(OVERRIDES, make), sandbox, judge)


# ---- roots


def outside(sandbox: Path) -> list[str]:
    """Return spellings of a path that is below no root; the root is ``own/store``."""
    work = sandbox / "own"
    store = work / "store"
    store.mkdir()
    (store / "link").symlink_to(sandbox / "outside")
    (store / "up").symlink_to("..")
    (work / "store-2").mkdir()
    return [
        str(sandbox / "outside"),
        f"{store}/../../outside",
        f"{store}/link",
        f"{store}/link/folder",
        f"{store}/x/../../store-2",
        f"{store}/up",
        f"{store}/up/store-2",
        f"{store}/up/../outside",
        f"{store}-2",
        str(work),
        "/",
        "/proc/self/root/etc",  # through a link of the kernel
        "/proc/self/cwd/../outside",
        "/dev/fd",
        f"file://{sandbox}/outside",
        f"local://{store}/../../outside",
        "gs://other/x",
        "s3://other/x",
        "memory://other",
        "~",
        "~root/x",
    ]


def run_of(prefix: Any, *, declares: bool = True) -> RunValues:
    """Return the values of a run with this prefix."""
    with DAG("made", params={"prefix": None} if declares else {}) as dag:
        pass
    due = datetime(2026, 1, 1, tzinfo=UTC)
    run = SimpleNamespace(data_interval_start=None, data_interval_end=None, partition_key=None, run_after=due)
    return ExperimentSettings().values_of({"dag": dag, "dag_run": run, "params": {"prefix": prefix}})  # type: ignore[typeddict-item]


def test_a_run_and_a_page_reach_nothing_below_no_root(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = outside(sandbox)
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(sandbox / "own/store"))

    def is_refused(outcome: Outcome) -> None:
        outcome.must_be_refused(UnusablePathError, ExperimentError, mentions=["The run's param 'prefix'"])

    def is_not_shown(outcome: Outcome) -> None:
        outcome.must_be_accepted()
        assert "The timeline is not read" in outcome.value, outcome.value

    attack_all(named(paths, lambda path: ExperimentSettings().prefix_of(run_of(path))), sandbox, is_refused)
    attack_all(named(paths, importlib.import_module("tradewind_ui.timelines").timeline_of), sandbox, is_not_shown)


def places_read(root: Path, reads: list[str], **more: Any) -> dict[str, str]:
    """Write an output's record below ``root`` with these inputs; return the paths where readers search."""
    output = f"{root}/a-654321"
    version = {"name": "a", "config": {}, "dependencies": reads}
    write_text(f"{output}/{INFO_FILE}", json.dumps({"name": "a", "version": version, **more}))
    stored = StoredVersions(Budget(100), Roots.of([str(root)]))
    stored.read([output])
    stored.read_deeper()
    return stored._places


def test_a_record_names_nothing_that_lies_below_no_root(sandbox: Path) -> None:
    paths, store = outside(sandbox), sandbox / "own/store"
    deeds = named(paths, lambda path: places_read(store, ["b-123456"], dependencies=[path]))
    expected = repr({"b-123456": f"{store}/b-123456"})
    attack_all(deeds, sandbox, lambda done: done.must_be_accepted(expected))


def test_a_record_names_nothing_that_is_no_place(sandbox: Path) -> None:
    paths = [path for path in NO_PLACES if isinstance(path, str)][:60:2]
    own = sandbox / "own"
    deeds = named(paths, lambda path: places_read(own, ["b-123456"], dependencies=[path]))
    expected = repr({"b-123456": f"{own}/b-123456"})
    attack_all(deeds, sandbox, lambda done: done.must_be_accepted(expected, secrets=[SECRET]))


def test_the_name_of_an_input_in_a_record_leads_nowhere_else(sandbox: Path) -> None:
    names = ["../../outside/x-123456", "..-123456", "a::b-123456", "\0-123456", "/etc/x-123456"]
    own = sandbox / "own"

    def look(name: str) -> list[str]:
        return [place for place in places_read(own, [name]).values() if not place.startswith(f"{own}/")]

    attack_all(named(names, look), sandbox, lambda done: done.must_be_accepted("[]"))


def test_a_param_that_the_dag_does_not_have_is_no_prefix(sandbox: Path) -> None:
    paths = ["/elsewhere", "gs://bucket/x", "http://h/x", "", None, 3, "{out}/../../outside"]
    deeds = named(paths, lambda path: run_of(path, declares=False).params)
    attack_all(deeds, sandbox, lambda done: done.must_be_accepted("{}"))


def test_a_driver_reads_no_input_that_lies_below_no_root(sandbox: Path) -> None:
    paths, output = outside(sandbox), f"{sandbox}/own/store/out"
    spec = StepSpec("s", "s-1", output, "m:f", None, {}, {"kind": "cpu"}, False, roots=(f"{sandbox}/own/store",))

    def check(path: str) -> None:
        attempt = Attempt(1, "job", "", {}, spec.to_json(), inputs={path: None})
        _check_paths(f"{output}/.attempts/1.json", attempt, spec)

    def judge(outcome: Outcome) -> None:
        outcome.must_be_refused(UnusablePathError, mentions=[".attempts/1.json: inputs"])

    attack_all(named(paths, check), sandbox, judge)


def test_driver_refuses_attempt_file_outside_its_stated_output(sandbox: Path) -> None:
    output = f"{sandbox}/own/out"
    spec = StepSpec("s", "s-1", output, "m:f", None, {}, {"kind": "cpu"}, False)
    attempt = Attempt(1, "job", "", {}, spec.to_json())
    files = [
        f"{output}2/.attempts/1.json",
        f"{output}/.attempts/2.json",
        f"{output}/1.json",
        f"{output}/.attempts/../1.json",
        "/tmp/1.json",
    ]

    def judge(outcome: Outcome) -> None:
        outcome.must_be_refused(StepRuntimeError, mentions=["is no attempt at"])

    attack_all(named(files, lambda file: _check_paths(file, attempt, spec)), sandbox, judge)


# ---- paths from the command line

WORDS = [
    "..",
    "../outside",
    "a/../../outside",
    "./../x",
    "\0",
    "a::b",
    "\udc80",
    "http://h/x",
    "http://[",
    "gs://",
    "x" * 300,
]


def test_a_word_of_the_command_line_leads_out_of_no_prefix(sandbox: Path) -> None:
    prefix = f"{sandbox}/own"
    deeds = named(
        WORDS,
        lambda word: named_output(prefix, word),
        lambda word: output_of(prefix, word, []),
        lambda word: find_version(word, prefix),
    )
    attack_all(deeds, sandbox, lambda done: done.must_be_refused(UsageError))


def test_what_looks_hostile_and_is_not_goes_on_working(sandbox: Path) -> None:
    paths = ("/data/a:b", "gs://bucket/a=1/b@2", "memory://a/[b]*", "/data/..x", "/data/x..", "s3://bucket/ä ö")
    names = ("x:y", "a..b", "...", "data/raw v2", "~")
    deeds = [
        named(paths, lambda path: Roots.of([path]).check(path, "A record")),
        named(names, lambda name: experiment_dag("made", [ExecutorStep(name, None, {})])),
    ]
    for each in deeds:
        attack_all(each, sandbox, lambda done: done.must_be_accepted())
    assert NO_ROOTS.paths == () and issubclass(UnusablePathError, StorageError)
