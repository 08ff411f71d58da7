"""Records of commit f897a9b, from before module renames: deferred task, attempt, finished output.

``records_of_f897a9b.json`` contains the objects that this commit stored in the bucket, the driver's arguments, and the
trigger and method that Airflow stores for a deferred task.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.operators.contexts import step_task
from tests.operators.loopback_head import LoopbackHead
from tradewind import ExecutorStep, versioned
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind
from tradewind.records.attempts import AttemptOutcome, attempt_path, read_attempt
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

STEP = ExecutorStep("made", json.dumps, {"rate": versioned(1)})
STORED: dict[str, Any] = json.loads(Path(__file__).with_name("records_of_f897a9b.json").read_text())
DONE = Ending(EndingKind.SUCCEEDED, "It ended well.", 0)


@pytest.fixture(autouse=True)
def store(cloud: LocalCloudStorage) -> None:
    """Fill the bucket with the objects of that commit."""
    fs = fsspec.filesystem("gs")
    for case in STORED.values():
        for name, text in case["objects"].items():
            fs.pipe(name, text.encode())


@pytest.mark.slow
def test_earlier_deferred_task_and_attempt_are_finished() -> None:
    case = STORED["deferred"]
    trigger = pkgutil.resolve_name(case["trigger"])(**case["fields"])
    assert trigger.serialize() == (case["trigger"], case["fields"])

    command = [sys.executable, "-m", "tradewind.runtime.run_step", *case["driver"]]
    driver = subprocess.run(command, capture_output=True, text=True, check=False)
    assert driver.returncode == 0, driver.stdout + driver.stderr

    operator, context = step_task("gs://bucket/deferred", step=STEP, deferrable=True)
    payload = case["fields"]["payload"]
    made = getattr(operator, case["method"])(context, {"ending": DONE.to_json(), **payload})
    assert (made["output_path"], made["attempt"]) == (payload["output_path"], 1)
    attempt = read_attempt(attempt_path(payload["output_path"], 1))
    assert attempt is not None and attempt.outcome is AttemptOutcome.SUCCEEDED


def test_earlier_finished_output_is_reused(head: LoopbackHead) -> None:
    operator, context = step_task("gs://bucket/finished", step=STEP, deferrable=True)
    made = operator.execute(context)
    assert (made["output_path"], made["attempt"], head.jobs) == ("gs://bucket/finished/made-0c4bd0", 1, {})
