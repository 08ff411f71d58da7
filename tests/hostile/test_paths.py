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

from tests.hostile.harness import expect_refusal, expect_success, named
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
    importlib.import_module("tradewind_ui.api.step_outputs")


UNUSABLE = [
    # chained file systems
    "reference://::http://127.0.0.1:9/x", "reference://::/etc/hostname", "simplecache::gs://bucket/x",
    "filecache::s3://bucket/x", "blockcache::file:///etc/hostname", "zip://inner::/data/archive.zip",
    "tar://inner::gs://bucket/archive.tar", "dir::file:///etc", "gs://bucket/a::b", "/data/a::b", "::", "a::",
    # credentials
    f"https://me:{SECRET}@host/x", f"gs://me:{SECRET}@bucket/x", f"s3://{SECRET}@bucket/x", f"sftp://me:{SECRET}@host/x",
    # schemes of other stores
    "http://169.254.169.254/computeMetadata/v1/", "http://127.0.0.1:8080/api", "https://host/x", "ftp://host/x",
    "ssh://host/x", "smb://host/x", "hdfs://host/x", "webhdfs://host/x", "github://org:repo@main/x", "git://repo",
    "jlab://host/x", "libarchive://x", "lakefs://x/y", "dvc://x", "arrow_hdfs://x", "abfs://container/x",
    "adl://container/x", "oci://bucket/x", "hf://datasets/x", "dbfs:///x", "dask://x", "cached://x",
    "data:text/plain,hello", "data:;base64,aGVsbG8=",
    # spellings of a scheme
    "GS://bucket/x", "S3://bucket/x", "FILE:///etc/hostname", " gs://bucket/x", "\tgs://bucket/x", "\ngs://bucket/x",
    "://bucket", "gs:/bucket/x", "s3:bucket", "file:/etc/hostname", "local:/etc/hostname", "memory:x",
    # buckets
    "gs://", "gs:///x", "s3://", "s3a:///x", "gs://.executor_status.lock", "gs:// bucket/x", "gs://buck\net/x",
    "s3://-bucket/x", "gs://[a-z]*/x", "gs://bucket/../other/x", "s3://bucket/a/../../other", "gs://bucket/./x",
    "gs://bucket/..", "gs://bucket/\0x",
    # names
    "/data/\0/etc", "\0", "/data/\udc80", "gs://bucket/\ud800x", "/" + "x" * 256, "/" + "é" * 128,
    "gs://bucket/" + "x" * 1025, "/" + "ab/" * 2000, "x" * 1_000_000,
    # not a text, or none
    "", None, 0, b"/data", ["/data"], {"path": "/data"}, Path("/data"),
]  # fmt: skip


def test_store_refuses_unusable_paths(sandbox: Path) -> None:
    cases = named(UNUSABLE, file_system_at, lambda path: open_file(path, "wb"))
    cases |= named(UNUSABLE[:64:4], read_text, read_record, list_files, lambda path: write_text(path, "x"))
    expect_refusal(cases, sandbox, *REFUSED, secrets=[SECRET])


def test_unusable_paths_are_neither_prefix_nor_root(sandbox: Path) -> None:
    def choose(path: Any) -> str:
        return choose_prefix(None, path, {}, None, lambda: None).path

    paths: list[Any] = UNUSABLE[:-7]
    mentions = ["The run's param 'prefix'"]
    expect_refusal(named(paths, choose), sandbox, *REFUSED, ExperimentError, secrets=[SECRET], mentions=mentions)
    roots = [path for path in paths if not set(path) & {",", "\n"} and path.strip() == path]
    expect_refusal(named(roots, roots_in), sandbox, *REFUSED, secrets=[SECRET], mentions=["allowed_roots"])


def outside(sandbox: Path) -> list[str]:
    """Return spellings of a path that is below no root; the root is ``own/store``."""
    work = sandbox / "own"
    store = work / "store"
    store.mkdir()
    (store / "link").symlink_to(sandbox / "outside")
    (store / "up").symlink_to("..")
    (work / "store-2").mkdir()
    return [
        str(sandbox / "outside"), f"{store}/../../outside", f"{store}/link", f"{store}/link/folder",
        f"{store}/x/../../store-2", f"{store}/up", f"{store}/up/store-2", f"{store}/up/../outside", f"{store}-2",
        str(work), "/", f"file://{sandbox}/outside", f"local://{store}/../../outside",
        "/proc/self/root/etc",  # through a link of the kernel
        "/proc/self/cwd/../outside", "/dev/fd", "gs://other/x", "s3://other/x", "memory://other", "~", "~root/x",
    ]  # fmt: skip


def run_of(prefix: Any, *, declares: bool = True) -> RunValues:
    """Return the values of a run with this prefix."""
    with DAG("made", params={"prefix": None} if declares else {}) as dag:
        pass
    due = datetime(2026, 1, 1, tzinfo=UTC)
    run = SimpleNamespace(data_interval_start=None, data_interval_end=None, partition_key=None, run_after=due)
    return ExperimentSettings().values_of({"dag": dag, "dag_run": run, "params": {"prefix": prefix}})  # type: ignore[typeddict-item]


def test_run_and_page_stay_below_roots(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = outside(sandbox)
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(sandbox / "own/store"))

    prefixes = named(paths, lambda path: ExperimentSettings().prefix_of(run_of(path)))
    mentions = ["The run's param 'prefix'"]
    expect_refusal(prefixes, sandbox, UnusablePathError, ExperimentError, mentions=mentions)
    check = importlib.import_module("tradewind_ui.api.step_outputs").check_path
    expect_refusal(named(paths, check), sandbox, *REFUSED, mentions=["The output path of this step"])


def places_read(root: Path, reads: list[str], **more: Any) -> dict[str, str]:
    """Write an output's record below ``root`` with these inputs; return the paths where readers search."""
    output = f"{root}/a-654321"
    version = {"name": "a", "config": {}, "dependencies": reads}
    write_text(f"{output}/{INFO_FILE}", json.dumps({"name": "a", "version": version, **more}))
    stored = StoredVersions(Budget(100), Roots.of([str(root)]))
    stored.read([output])
    stored.read_deeper()
    return stored._places


def test_record_cannot_lead_readers_outside_the_roots(sandbox: Path) -> None:
    store = sandbox / "own/store"
    unusable = [path for path in UNUSABLE if isinstance(path, str)][:60:2]
    paths = named([*outside(sandbox), *unusable], lambda path: places_read(store, ["b-123456"], dependencies=[path]))
    expect_success(paths, sandbox, repr({"b-123456": f"{store}/b-123456"}), secrets=[SECRET])

    def foreign(name: str) -> list[str]:
        return [place for place in places_read(store, [name]).values() if not place.startswith(f"{store}/")]

    names = ["../../outside/x-123456", "..-123456", "a::b-123456", "\0-123456", "/etc/x-123456"]
    expect_success(named(names, foreign), sandbox, "[]")


def test_undeclared_param_is_not_a_prefix(sandbox: Path) -> None:
    paths = ["/elsewhere", "gs://bucket/x", "http://h/x", "", None, 3, "{out}/../../outside"]
    expect_success(named(paths, lambda path: run_of(path, declares=False).params), sandbox, "{}")


def spec_at(output: str, *roots: str) -> StepSpec:
    return StepSpec("s", "s-1", output, "m:f", None, {}, {"kind": "cpu"}, False, roots=roots)


def test_driver_reads_no_input_outside_the_roots(sandbox: Path) -> None:
    paths, output = outside(sandbox), f"{sandbox}/own/store/out"
    spec = spec_at(output, f"{sandbox}/own/store")

    def check(path: str) -> None:
        attempt = Attempt(1, "job", "", {}, spec.to_json(), inputs={path: None})
        _check_paths(f"{output}/.attempts/1.json", attempt, spec)

    expect_refusal(named(paths, check), sandbox, UnusablePathError, mentions=[".attempts/1.json: inputs"])


def test_driver_refuses_attempt_file_outside_its_stated_output(sandbox: Path) -> None:
    output = f"{sandbox}/own/out"
    spec = spec_at(output)
    attempt = Attempt(1, "job", "", {}, spec.to_json())
    files = [f"{output}{end}" for end in ("2/.attempts/1.json", "/.attempts/2.json", "/1.json", "/.attempts/../1.json")]
    cases = named([*files, "/tmp/1.json"], lambda file: _check_paths(file, attempt, spec))
    expect_refusal(cases, sandbox, StepRuntimeError, mentions=["is no attempt at"])


def test_output_argument_stays_below_the_prefix(sandbox: Path) -> None:
    words = ["..", "../outside", "a/../../outside", "./../x", "\0", "a::b", "\udc80", "http://h/x", "http://[", "gs://"]
    prefix = f"{sandbox}/own"
    cases = named(
        [*words, "x" * 300],
        lambda word: named_output(prefix, word),
        lambda word: output_of(prefix, word, []),
        lambda word: find_version(word, prefix),
    )
    expect_refusal(cases, sandbox, UsageError)


def test_unusual_but_valid_paths_and_names_are_accepted(sandbox: Path) -> None:
    paths = ("/data/a:b", "gs://bucket/a=1/b@2", "memory://a/[b]*", "/data/..x", "/data/x..", "s3://bucket/ä ö")
    names = ("x:y", "a..b", "...", "data/raw v2", "~")
    cases = named(paths, lambda path: Roots.of([path]).check(path, "A record"))
    cases |= named(names, lambda name: experiment_dag("made", [ExecutorStep(name, None, {})]))
    expect_success(cases, sandbox)
    assert NO_ROOTS.paths == () and issubclass(UnusablePathError, StorageError)
