"""A malformed record leads to one sentence with the file name, after a bounded read that never blocks."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hostile.harness import Call, expect_refusal, expect_success, named
from tests.hostile.plan_xcoms import LINE
from tradewind.attempts.spec_digest import SpecChangedError, load_claimed_spec, spec_digest
from tradewind.plans.garbage.collection import RequiredOutputs, find_garbage_below
from tradewind.plans.plan import BadPlanError, Plan, planned_in
from tradewind.plans.planning import plan_now, read_outputs
from tradewind.records.attempts import ATTEMPTS_FOLDER, Attempt, attempt_path, read_attempt, read_attempt_or_none
from tradewind.records.info_files import INFO_FILE, parse_info
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.records.lease_store import LeaseStore
from tradewind.records.lifecycle import claim_attempt
from tradewind.records.manifests import manifest_path, read_manifest
from tradewind.records.pins import Pin, add_pin, look_for_pins, pin_path
from tradewind.records.record import RecordState, read_record, status_path
from tradewind.runtime.driver.child import read_error
from tradewind.runtime.pods.timeline import read_timeline
from tradewind.serialization.errors import SpecError
from tradewind.serialization.spec import StepSpec
from tradewind.steps import ExecutorStep, TpuSlice, resolve, versioned
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import read_contents, write_text
from tradewind.tasks.pod_summary import pod_summary

OUTPUT: Final = "store/step-abcdef"
ATTEMPT: Final = {"number": 1, "job": "j", "cluster": "", "by": {}, "spec": {}}
LEASE: Final = {"worker_id": "w", "timestamp": 5.0, "phase": "committed", "attempt": 1, "witness": "model"}
INFO: Final = {"name": "n", "config": {}, "version": {}, "dependencies": ["/p/raw-abcdef"]}
MANIFEST: Final = {"attempt": 1, "files": [{"path": "model", "size": 5, "checksum": None}]}
PIN: Final = {"path": OUTPUT, "user": "u", "at": "2026-11-22T00:00:00+00:00", "note": ""}
EVENT: Final = {"event": "started", "at": 5.0}
SPEC: Final = StepSpec("n", "n-abcdef", OUTPUT, "m:f", None, None, {"kind": "cpu"}, False).to_json()

BAD_CONTENTS: Final = {
    "empty": b"",
    "blank": b" \n\t ",
    "cut off": b'{"number": 1, "jo',
    "cut in a letter": '{"worker_id": "ä'.encode()[:-1],
    "not UTF-8": b"\xff\xfe{}",
    "UTF-16": '{"number": 1}'.encode("utf-16"),
    "zeros": bytes(100),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a number": b"7",
    "a text": b'"SUCCESS"',
    "null": b"null",
    "true": b"true",
    "NaN": b"NaN",
    "a list of lists": b"[[1], [2]]",
    "an object without fields": b"{}",
    "two objects": b"{}{}",
    "5,000 digits": b'{"number": ' + b"1" * 5000 + b"}",
    "deep lists": b"[" * 100_000,
    "closed deep lists": b"[" * 5000 + b"]" * 5000,
    "lists as deep as the parser goes": b"[" * 500 + b"]" * 500,
    "deep objects": b'{"a":' * 100_000,
    "Python": b"{'number': 1}",
    "pickle": b"cos\nsystem\n(S'touch ../outside/new'\ntR.",
    "YAML": b"!!python/object/apply:os.system ['true']",
    "HTML": b"<html>403</html>",
}


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


BAD_FILES: Final[dict[str, Callable[[Path], Any]]] = {
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a gigabyte": make_sparse,
    "a socket": _socket,
    "a link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


def _read_lease() -> Lease:
    stored = LeaseStore(OUTPUT).read()
    assert stored is not None
    if stored.lease.flaw is not None:
        raise BadRecordError(lease_path(OUTPUT), stored.lease.flaw)
    return stored.lease


def _read_info() -> Any:
    file = f"{OUTPUT}/{INFO_FILE}"
    return parse_info(file, read_contents([file])[file])


def _read_pins() -> Any:
    pins = look_for_pins("store")
    for error in pins.unread:
        raise error
    return pins.read


TIMELINE: Final = f"{OUTPUT}/{ATTEMPTS_FOLDER}/1/timeline.json"
READERS: Final[dict[str, tuple[str, Callable[[], Any]]]] = {
    "lease": (lease_path(OUTPUT), _read_lease),
    "attempt": (attempt_path(OUTPUT, 1), lambda: read_attempt(attempt_path(OUTPUT, 1))),
    "info": (f"{OUTPUT}/{INFO_FILE}", _read_info),
    "manifest": (manifest_path(OUTPUT, 1), lambda: read_manifest(OUTPUT, 1)),
    "pin": (pin_path("store", OUTPUT), _read_pins),
    "timeline": (TIMELINE, lambda: read_timeline(TIMELINE)),
}


MALFORMED: Final[dict[str, bytes | Callable[[Path], Any]]] = {
    **BAD_CONTENTS, **BAD_FILES, "lists": b"[" + b"[]," * (5 << 20) + b"1]"
}  # fmt: skip
KINDS: Final = ("empty", "cut off", "a pipe", "a link to itself", "a gigabyte", "a folder")
"""One content of each kind, for the callers of the readers above."""


def _put(sandbox: Path, file: str, content: bytes | Callable[[Path], Any]) -> None:
    path = sandbox / "own" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content) if isinstance(content, bytes) else content(path)


def _putting(sandbox: Path, file: str) -> Callable[[str], None]:
    """Return a ``prepare`` that writes the malformed content of the case's name at ``file``."""
    return lambda name: _put(sandbox, file, MALFORMED[name])


@pytest.mark.parametrize("record", READERS)
def test_malformed_record_is_refused_by_file_name(record: str, sandbox: Path) -> None:
    file, read = READERS[record]
    cases = dict.fromkeys(MALFORMED, read)
    expect_refusal(cases, sandbox, BadRecordError, mentions=[file, "because"], prepare=_putting(sandbox, file))


WRONG: Final[dict[str, tuple[dict[str, Any], dict[str, list[Any]]]]] = {
    "lease": (
        LEASE,
        {
            "worker_id": [None, 5, "\ud800"],
            "timestamp": [None, "5", True, float("nan"), float("inf"), -1, 1e300, 10**400],
            "phase": ["done", "", 5, ["committed"]],
            "attempt": [-1, 1.5, "1", True, 10**30],
            "by": ["me", [], 5],
            "heartbeat_s": [0, -1, 1e300, float("nan"), None],
            "digest": [5, {}],
            "witness": ["../outside/treasure", "/etc/passwd", "", "a/../../b", "a\0b", 5, "..", "a//b"],
            "counter": [-1, 10**30, "1"],
            "removing": ["gc", 1],
        },
    ),
    "attempt": (
        ATTEMPT,
        {
            "number": [None, "1", 2, -1, True, 1.0, 10**30],
            "job": [None, 5, ["j"], "\udcff"],
            "by": [None, "me", []],
            "spec": [None, "s", []],
            "inputs": [[], "x", {"/p": 5}, {"/p": {}}],
            "withdraws": ["no", 1, None],
            "found": ["x", {}, [5]],
            "outcome": ["won", 5, {}],
            "error": ["E", [], {"type": "E"}, {"type": 5, "message": "m"}],
            "started_at": [5, None],
        },
    ),
    "info": (INFO, {"name": [None, 5, ["n"]], "dependencies": ["/p", [5], {"a": 1}, [None]]}),
    "manifest": (
        MANIFEST,
        {
            "attempt": ["1", None, -1, float("nan"), float("inf")],
            "files": [None, {}, "x", [5], [{}], [{"path": 5, "size": 1, "checksum": None}], [[["p", 1]]]],
        },
    ),
    "pin": (PIN, {"path": [None, 5, "/another", "\ud800", ""], "user": [5], "at": [None], "note": [{}]}),
    "event": (
        EVENT,
        {
            "event": [None, 5],
            "at": [None, "5", float("nan"), float("inf"), 1e300, -1, 10**400],
            "step": ["7", [], {}],
            "start_s": ["fast", {}],
            "slices": ["v4", [5], {}],
            "to": ["two", -1, 1.5],
            "cause": [5, {}],
        },
    ),
}
REQUIRED: Final = {
    "lease": ["worker_id", "timestamp"],
    "attempt": [*ATTEMPT],
    "info": ["name"],
    "manifest": [*MANIFEST],
    "pin": ["path", "user", "at"],
    "event": [*EVENT],
}


@pytest.mark.parametrize("record", WRONG)
def test_field_of_wrong_type_is_refused_by_file_name(record: str, sandbox: Path) -> None:
    file, read = READERS["timeline" if record == "event" else record]
    base, fields = WRONG[record]
    wrong = {f"{name}-{number}": base | {name: value} for name in fields for number, value in enumerate(fields[name])}
    for gone in REQUIRED[record]:
        wrong[f"without {gone}"] = {name: value for name, value in base.items() if name != gone}

    def prepare(name: str) -> None:
        _put(sandbox, file, json.dumps([wrong[name]] if record == "event" else wrong[name]).encode())

    cases = dict.fromkeys(wrong, read)
    expect_refusal(cases, sandbox, BadRecordError, mentions=[file, "because"], prepare=prepare)


def test_valid_records_are_read(sandbox: Path) -> None:
    whole = {"lease": LEASE, "attempt": ATTEMPT, "info": INFO, "manifest": MANIFEST, "pin": PIN, "timeline": [EVENT]}
    expect_success(
        {record: read for record, (_, read) in READERS.items()},
        sandbox,
        prepare=lambda record: _put(sandbox, READERS[record][0], json.dumps(whole[record]).encode()),
    )


BAD_STEPS: Final[list[Any]] = [
    *({"a": 1}, ["a"], [{name: LINE[name] for name in LINE if name != "reason"}]),
    *([LINE | {"decision": decision}] for decision in ("DELETE", ["RUN"])),
    *([LINE | {"output_path": 5}], [LINE | {"task_id": "\ud800"}], [LINE | {"attempt": float("inf")}]),
]
PLANS: Final[list[Any]] = [
    *([], "plan", None, {"prefix": "/p"}, {"prefix": None, "steps": []}),
    *({"prefix": "/p", "steps": steps} for steps in BAD_STEPS),
    *({"prefix": "/p", "steps": [], "warnings": warnings} for warnings in ("w", [{}])),
    {"prefix": "/p", "steps": [], "estimate": 5},
]


def test_malformed_plan_is_refused(sandbox: Path) -> None:
    expect_refusal(named(PLANS, Plan.from_json), sandbox, BadPlanError, mentions=["Clear the plan task"])
    pieces = [[], "x", 5, {"steps": None}, {"steps": [{"task_id": "t"}]}, {"x": 1}]
    expect_refusal(named(pieces, lambda piece: planned_in(piece, "t")), sandbox, BadPlanError)


def test_spec_with_field_of_wrong_type_is_refused(sandbox: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"function": 5}, {"function": None}, {"output_path": ["/p"]}, {"secrets": {"A": 5}}, {"secrets": "A"},
        {"resumable": "**"}, {"resumable": [5]}, {"code_travels": "yes"}, {"ray_task": []}, {"resources": "cpu"},
        {"environment": []}, {"roots": [None]}, {"name": "\ud800"},
    ]  # fmt: skip
    cases = named(wrong, lambda fields: StepSpec.from_json(SPEC | fields))
    expect_refusal(cases, sandbox, SpecError, mentions=["because"])
    resources: list[dict[str, Any]] = [{}, {"kind": "shell"}, {"kind": ["cpu"]}, {"kind": "cpu", "x": 1}]
    specs = [StepSpec.from_json(SPEC | {"resources": value}) for value in resources]
    expect_refusal(named(specs, StepSpec.load_resources), sandbox, SpecError)


CHANGES: Final[list[dict[str, Any]]] = [
    {"function": "os:system"},
    {"config": {"$object": "os:system"}},
    {"config": {"$lazy": "subprocess:Popen", "fields": {}}},
    {"output_path": "/elsewhere"},
    {"secrets": {"KEY": "projects/p/secrets/s"}},
    {"environment": {"pip": ["evil"]}},
    {"ray_task": {"num_cpus": 9}},
    {"resumable": ["**"]},
    {"further": 1},
]


def test_driver_refuses_changed_or_unreadable_spec(sandbox: Path) -> None:
    file = attempt_path(OUTPUT, 1)
    changes = {str(change): change for change in CHANGES}

    def load() -> Any:
        return load_claimed_spec(file, spec_digest(SPEC))

    def prepare(name: str) -> None:
        _put(sandbox, file, json.dumps(ATTEMPT | {"spec": SPEC | changes[name]}).encode())

    mentions = [file, "not what was claimed"]
    expect_refusal(dict.fromkeys(changes, load), sandbox, SpecChangedError, mentions=mentions, prepare=prepare)
    unread = dict.fromkeys(KINDS, load)
    expect_refusal(unread, sandbox, SpecChangedError, mentions=[file], prepare=_putting(sandbox, file))


def _next_attempt() -> bool:
    store = LeaseStore(OUTPUT)
    ended = store.read()
    attempt = Attempt(2, "job-2", "", {}, SPEC)
    claimed = claim_attempt(store, OUTPUT, ended, attempt, "v", 30.0)
    again = claim_attempt(store, OUTPUT, ended, replace(attempt, job="job-3"), "v", 30.0)
    assert claimed is not None and claimed.lease.attempt == 2 and again is None
    written = read_attempt_or_none(OUTPUT, 2)
    return written is not None and written.job == "job-2" and written.withdraws


def test_damaged_attempt_file_does_not_block_next_attempt(sandbox: Path) -> None:
    lease = Lease("w", 5.0, Phase.STOPPED, 1, "job-1", incarnation="k")

    def prepare(name: str) -> None:
        _put(sandbox, lease_path(OUTPUT), lease.to_json().encode())
        _put(sandbox, attempt_path(OUTPUT, 1), MALFORMED[name])

    expect_success(dict.fromkeys(KINDS, _next_attempt), sandbox, "True", prepare=prepare)


def test_damaged_timeline_or_error_file_counts_as_missing(sandbox: Path) -> None:
    error = f"{OUTPUT}/{ATTEMPTS_FOLDER}/1/error-0.json"
    readers: dict[str, Call] = {
        TIMELINE: lambda: pod_summary(OUTPUT, 1, TpuSlice("v4-16")),
        error: lambda: read_error(OUTPUT, 1, printed="E"),
    }
    for file, read in readers.items():
        expect_success(dict.fromkeys(KINDS, read), sandbox, "None", prepare=_putting(sandbox, file))


def test_status_that_is_no_file_blocks_only_its_own_step(sandbox: Path) -> None:
    bad = ExecutorStep("bad", None, {"x": versioned(1)})
    good = ExecutorStep("good", None, {"x": versioned(2)})
    steps = resolve([bad, good], str(sandbox / "own" / "store")).steps

    def prepare(name: str) -> None:
        os.makedirs(steps[0].output_path)
        BAD_FILES[name](Path(status_path(steps[0].output_path)))

    def call() -> list[str]:
        assert read_record(steps[0].output_path).state is RecordState.UNREADABLE
        outputs = read_outputs([step.output_path for step in steps])
        plan = plan_now("/p", [(step.name, step) for step in steps], {"bad", "good"}, outputs)
        return [step.decision.value for step in plan.steps]

    expect_success(dict.fromkeys(BAD_FILES, call), sandbox, "['BLOCKED', 'RUN']", prepare=prepare)


def _write_output(path: str, reads: list[str]) -> None:
    write_text(f"{path}/model", "x")
    write_text(lease_path(path), Lease("w", 5.0, Phase.COMMITTED, 1, "j", digest="d", witness="model").to_json())
    write_text(f"{path}/{INFO_FILE}", json.dumps(INFO | {"dependencies": reads}))


@pytest.mark.parametrize("file", ["info", "pin"])
def test_inputs_of_pinned_output_survive_damaged_records(file: str, sandbox: Path) -> None:
    own = sandbox / "own"
    prefix, raw, pinned = (str(own / path) for path in ("store", "store/raw-abcdef", "store/model-abcdef"))
    damaged = Path(pin_path(prefix, pinned) if file == "pin" else f"{pinned}/{INFO_FILE}")

    def prepare(name: str) -> None:
        _write_output(raw, [])
        _write_output(pinned, [raw])
        assert add_pin(prefix, Pin(pinned, "u", "2026-11-22T00:00:00+00:00"))
        damaged.unlink()
        _put(sandbox, str(damaged.relative_to(own)), MALFORMED[name])

    def call() -> tuple[list[str], bool]:
        [sweep] = find_garbage_below([prefix], RequiredOutputs(), 0.0)
        return [each.path for each in sweep.garbage], len(sweep.unread) == 1

    expect_success(dict.fromkeys(KINDS, call), sandbox, "([], True)", prepare=prepare)
