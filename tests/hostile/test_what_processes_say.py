"""Files that a step's own processes leave may hold any content."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import attack
from tradewind.cloud_tpu.goodput import CountedSteps, first_start, metrics_rows
from tradewind.recipes.metrics.file import read_metrics
from tradewind.runtime.pods.on_host.heartbeat import Beat, read_beat
from tradewind.serialization.errors import ResultError
from tradewind.serialization.shipping import decode_result

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
