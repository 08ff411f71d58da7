"""Check a drill's guarantees from the store, the job list and the traces, without logs.

While a step's function runs, it appends timestamped lines to a trace, a local file.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsspec.core import url_to_fs

from tests.chaos.runs.environment import BUCKET, RunsEnvironment
from tradewind.records.attempts import AttemptOutcome, attempt_path, read_attempt
from tradewind.records.lease import Phase
from tradewind.records.lease_store import LeaseStore

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
TOTALS = {"source": 1, "left": 1, "right": 1, "total": 2}


def violations(environment: RunsEnvironment) -> Iterator[str]:
    """Yield a sentence for each violated guarantee."""
    found = all_executions(environment.traces)
    for version, executions in found.items():
        yield from (f"{version}: {sentence}" for sentence in overlaps(executions))
    outputs = _outputs(environment)
    if len(outputs) != environment.waves * len(TOTALS):
        yield f"There are {len(outputs)} outputs instead of {environment.waves * len(TOTALS)}: {outputs}"
    jobs = {job["submission_id"]: job["status"] for job in environment.jobs() if job.get("submission_id")}
    yield from (f"Job {job} is {status}." for job, status in jobs.items() if status not in TERMINAL)
    for output in outputs:
        yield from (f"{output}: {sentence}" for sentence in _wrong_output(environment, output, jobs))


def _outputs(environment: RunsEnvironment) -> list[str]:
    fs, root = url_to_fs(f"gs://{BUCKET}/night")
    fs.invalidate_cache()
    return sorted(f"gs://{path}" for path in fs.ls(root, detail=False) if "-" in posixpath.basename(path))


def _wrong_output(environment: RunsEnvironment, output: str, jobs: dict[str, str]) -> Iterator[str]:
    fs, root = url_to_fs(output)
    files = {path[len(root) + 1 :]: path for path in fs.find(root)}
    record = LeaseStore(output).read()
    if record is None or record.lease.phase is not Phase.COMMITTED:
        yield f"its lease is {record.lease.phase if record else 'missing'}"
        return
    attempts = sum(name.startswith(".attempts/") and name.count("/") == 1 for name in files)
    succeeded = [number for number in range(1, attempts + 1) if _outcome(output, number) is AttemptOutcome.SUCCEEDED]
    if succeeded != [record.lease.attempt]:
        yield f"attempts {succeeded} succeeded, and attempt {record.lease.attempt} is committed"
    whole = json.loads(fs.cat_file(files["whole.json"]))
    words = {fs.cat_file(files[name]).decode() for name in files if name.startswith("parts/")}
    if words != {whole["word"]} or sum(name.startswith("parts/") for name in files) != whole["files"]:
        yield f"its files are of {len(words | {whole['word']})} attempts: {sorted(files)}"
    name = posixpath.basename(output).rpartition("-")[0]
    if whole["total"] != TOTALS[name]:
        yield f"its total is {whole['total']} instead of {TOTALS[name]}"
    if jobs.get(record.lease.job) not in ("SUCCEEDED", "FAILED"):  # the job's supervisor may have died after the commit
        yield f"its job {record.lease.job} is {jobs.get(record.lease.job)}"


def _outcome(output: str, number: int) -> AttemptOutcome | None:
    attempt = read_attempt(attempt_path(output, number))
    return attempt.outcome if attempt is not None else None


@dataclass(frozen=True)
class Execution:
    """One execution of a step's function, from its first line to its last, in boot clock seconds."""

    word: str
    pid: int
    first: float
    last: float


def executions_in(trace: Path) -> list[Execution]:
    """Return the executions in one trace, by start time."""
    found: dict[str, Execution] = {}
    for text in trace.read_text().splitlines():
        line = json.loads(text)
        before = found.get(line["word"])
        first = line["at"] if before is None else before.first
        found[line["word"]] = Execution(line["word"], line["pid"], first, line["at"])
    return sorted(found.values(), key=lambda execution: execution.first)


def all_executions(traces: Path) -> dict[str, list[Execution]]:
    """Return version → its executions."""
    return {trace.name: executions_in(trace) for trace in sorted(traces.iterdir())}


def overlaps(executions: list[Execution]) -> list[str]:
    """Return a sentence for each execution that began before an earlier one of its version had ended."""
    sentences: list[str] = []
    latest = executions[0]
    for later in executions[1:]:
        if later.first <= latest.last:
            sentences.append(
                f"process {later.pid} began {latest.last - later.first:.2f} s before {latest.pid} had ended"
            )
        latest = max(latest, later, key=lambda execution: execution.last)
    return sentences
