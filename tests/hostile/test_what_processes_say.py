"""Files that a step's processes or a slice repair leave may hold any content; a bad lock counts as held."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hostile.harness import attack
from tests.hostile.test_records import make_sparse
from tradewind.cloud_tpu.goodput import CountedSteps, first_start, metrics_rows
from tradewind.cloud_tpu.repair.records import STALE_S, RepairLock, SliceRecord, SliceRecordError, SliceRecords
from tradewind.recipes.metrics.file import read_metrics
from tradewind.runtime.pods.on_host.heartbeat import Beat, read_beat
from tradewind.serialization.errors import ResultError
from tradewind.serialization.shipping import decode_result
from tradewind.storage.swap import StoredObject

GOOD: dict[str, Any] = {"alive_at": 5.0, "step": 3, "step_at": 4.5, "saved": 2}
DEEP = "[" * 3000 + "]" * 3000


def beat_of(folder: Path, text: str) -> Beat | None:
    file = folder / "beat"
    file.write_text(f"{text}\n{zlib.crc32(text.encode()):08x}\n")
    return read_beat(str(file))


def test_malformed_heartbeat_counts_as_missing(tmp_path: Path) -> None:
    assert beat_of(tmp_path, json.dumps(GOOD)) == Beat(5.0, 3, 4.5, 2)
    texts = ["null", "[]", "7", "{", '{"alive_at": null, "step": 1, "step_at": 1, "saved": 1}', DEEP]
    texts += [json.dumps({**GOOD, name: value}) for name in GOOD for value in ("7", [], {}, True)]
    assert [text for text in texts if beat_of(tmp_path, text) is not None] == []


def test_malformed_metrics_row_is_skipped(tmp_path: Path, subtests: pytest.Subtests) -> None:
    file = tmp_path / "metrics.jsonl"
    for line in ("null", "[]", "7", "{", "{}", '{"step": "3"}', '{"step": [1]}', '{"step": null}', DEEP):
        with subtests.test(line[:40]):
            file.write_text(f'{line}\n{{"step": 1, "loss": 2.0}}\n')
            assert read_metrics(str(file)) == metrics_rows(file.read_text()) == [{"step": 1, "loss": 2.0}]


def test_invalid_metrics_row_is_skipped_without_losing_others(subtests: pytest.Subtests) -> None:
    good = {"step": 1, "step_seconds": 2.0, "time": 5.0}
    for name in ("time", "step_seconds"):
        for value in ('"1"', "[]", "NaN", "-1", "1e999", "1" + "0" * 400):
            with subtests.test(f"{name} {value[:20]}"):
                rows = metrics_rows(f'{{"step": 0, "{name}": {value}}}\n{json.dumps(good)}\n')
                assert rows == [good]
                assert (CountedSteps(rows).seconds, first_start(rows, 9.0)) == (2.0, 5.0)


def test_step_counting_stays_linear_for_alternating_steps(sandbox: Path) -> None:
    steps = [*range(50_000), *(step for _ in range(25_000) for step in (50_000, 5))]
    rows = [{"step": step, "step_seconds": 1.0} for step in steps]
    attack(lambda: CountedSteps(rows).seconds, sandbox).must_be_accepted("6.0")


def test_too_deep_result_is_refused_in_one_sentence(sandbox: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    attack(lambda: decode_result(deep, "job"), sandbox).must_be_refused(ResultError)


# ---- records of slice repairs


DELETION: Final[dict[str, Any]] = {"name": "a", "identity": "1", "at": 5.0, "body": {}, "is_certain": False}
NAMES: Final = ("deleted-1.json", "notes.json")
BAD_TEXTS: Final = (b"", b'["\xff"]', b"null", b"7", b"[" * 100_000, b"[" + b"9" * 5000 + b"]")
BAD_DELETIONS: Final[list[dict[str, Any]]] = [
    {"name": 5}, {"name": None}, {"name": []}, {"identity": 1}, {"at": "5"}, {"at": None}, {"at": True},
    {"at": float("nan")}, {"at": float("inf")}, {"at": -1}, {"at": 1e12}, {"body": []}, {"body": "x"},
    {"is_certain": "no"}, {"other": 1},
]  # fmt: skip
BAD_NOTES: Final[list[dict[str, Any]]] = [
    {"since": "5"}, {"since": float("nan")}, {"since": -1}, {"trouble": 5}, {"refusals": "3"}, {"refusals": 10**12},
    {"refusals": -1}, {"retry_at": None}, {"retry_at": float("inf")}, {"denied": {}}, {"body": {}}, {"name": "b"},
]  # fmt: skip
BAD_RECORDS: Final = [
    *((name, text) for name in NAMES for text in BAD_TEXTS),
    *((NAMES[0], json.dumps([DELETION, DELETION | wrong]).encode()) for wrong in BAD_DELETIONS),
    *((NAMES[1], json.dumps({"a": wrong}).encode()) for wrong in BAD_NOTES),
]


def _check_refused(folder: Path, name: str) -> None:
    with pytest.raises(SliceRecordError) as refusal:
        SliceRecords(str(folder)).read()
    assert name in str(refusal.value) and "\n" not in str(refusal.value)


def test_malformed_slice_record_is_refused_by_file_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (name, content) in enumerate(BAD_RECORDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(content)
        with subtests.test(f"{name} {content[:80]!r}"):
            _check_refused(folder, name)


NO_FILES = {"pipe": os.mkfifo, "folder": os.mkdir, "link": partial(os.symlink, "/etc/passwd"), "large": make_sparse}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize("name", NAMES)
def test_path_that_is_no_slice_record_file_is_never_opened(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    _check_refused(tmp_path, name)
    if name == "notes.json":
        with pytest.raises(SliceRecordError, match="damaged"):
            SliceRecords(str(tmp_path)).write_notes({"a": SliceRecord("a", trouble="gone")})


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", "{}", '{"holder": null}', '{"holder": 0}', "[" * 100_000])
def test_unreadable_repair_lock_is_foreign_until_stale(text: str) -> None:
    def write(path: str, new: str, tag: str | None) -> StoredObject:
        return StoredObject(new, "2", 0.0)

    assert not RepairLock("lock", lambda path: StoredObject(text, "1", 1.0), write).acquire()
    assert RepairLock("lock", lambda path: StoredObject(text, "1", STALE_S), write).acquire()
