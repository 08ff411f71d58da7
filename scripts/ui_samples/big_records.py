"""Records of earlier attempts at the steps of ``big_plan``, so that its plan has a decision of every kind.

They are written with the package's own writers before the plan is made, and most are removed afterwards, since 1,000
outputs without files would bury those of the other samples.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sample_links import NOVEMBER, OCTOBER, big_steps

from tradewind.records.attempts import Attempt, AttemptError, AttemptOutcome, write_attempt
from tradewind.records.info_files import write_step_info
from tradewind.records.lease import Lease, Phase, lease_path
from tradewind.steps import ResolvedStep, resolve
from tradewind.storage.files import write_text

DAY_S: Final = 86_400.0
TOOK_S: Final = 720.0
BY: Final = {"script": "big_plan.py", "host": "build-7"}
ERROR: Final = AttemptError("RuntimeError", "RESOURCE_EXHAUSTED: out of memory while allocating 12.3 GiB")
_OUTCOMES: Final = {Phase.COMMITTED: AttemptOutcome.SUCCEEDED, Phase.FAILED: AttemptOutcome.FAILED}


def write_records(store: Path) -> None:
    """Write the crawl of October as finished, and of that of November what its first run left."""
    old, new = (resolve(big_steps(crawl), str(store)).steps for crawl in (OCTOBER, NOVEMBER))
    now = time.time()
    known, wanted = ({step.output_path for step in steps} for steps in (old, new))
    for step in old:
        if step.output_path not in wanted:
            _write_attempt(step, Phase.COMMITTED, now - 30 * DAY_S)
    for number, step in enumerate(new):
        phase = _phase(step.name, number) if step.output_path in known else None
        if step.name == "big/train_3b":
            phase = Phase.FAILED
        if phase is Phase.COMMITTED:
            _write_lease(step, phase, now - DAY_S)
        elif phase is not None:
            _write_attempt(step, phase, now - DAY_S)


def _phase(name: str, number: int) -> Phase | None:
    """Return what the newest attempt left; None if there was none."""
    if name.startswith("big/law/clean") and number % 4 == 0:
        return Phase.RUNNING
    return None if name in ("big/law/tokens", "big/recipes/raw") else Phase.COMMITTED


def _write_attempt(step: ResolvedStep, phase: Phase, at: float) -> None:
    """Write all that an attempt leaves but files."""
    write_step_info(step, "sample_work.write_link")
    started_at, ended_at = (datetime.fromtimestamp(each, UTC).isoformat() for each in (at - TOOK_S, at))
    spec = {"resources": {"kind": "airflow_worker"}}
    attempt = Attempt(1, _job(step), "", BY, spec, started_at=started_at)
    if (outcome := _OUTCOMES.get(phase)) is not None:
        error = ERROR if outcome is AttemptOutcome.FAILED else None
        attempt = replace(attempt, outcome=outcome, error=error, ended_at=ended_at)
    write_attempt(step.output_path, attempt)
    _write_lease(step, phase, at)


def _write_lease(step: ResolvedStep, phase: Phase, at: float) -> None:
    lease = Lease("sample", at, phase, attempt=1, job=_job(step), by=BY, version=step.digest, heartbeat_s=DAY_S)
    write_text(lease_path(step.output_path), lease.to_json())


def _job(step: ResolvedStep) -> str:
    return step.version_name.replace("/", "-")


def remove_records(store: Path) -> None:
    """Remove those of the domains; the mixture, the trainings and their evaluations keep theirs."""
    for folder in (store / "big").iterdir():
        if "-" not in folder.name:
            shutil.rmtree(folder)
