"""``tradewind status``: the state of each output, and who is or was at work on it."""

from __future__ import annotations

import argparse
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tradewind.cli.experiments.load import RunChoice, default_prefix, load_experiment
from tradewind.cli.output import json_lines, write_lines
from tradewind.plans.why.phrases import age_text, producer_text
from tradewind.records.outputs.finding import find_outputs
from tradewind.records.reading import read_records
from tradewind.records.record import Record, RecordState
from tradewind.text_table import aligned

_HEAD = ("STATE", "OUTPUT", "ATTEMPT", "SINCE", "PRODUCER", "JOB")


@dataclass(frozen=True)
class OutputStatus:
    """One line.

    Attributes:
        attempt: The newest attempt; 0 for none of ours.
        since: When the lease was last written, by the clock of its writer.
        producer: Who is or was at work.
    """

    output_path: str
    state: RecordState
    attempt: int
    producer: str
    job: str
    since: float | None

    @staticmethod
    def of(path: str, record: Record) -> OutputStatus:
        """What the record of an output says."""
        lease = record.lease
        if lease is None:
            return OutputStatus(path, record.state, 0, "", "", None)
        return OutputStatus(path, record.state, lease.attempt, producer_text(lease.by), lease.job, lease.timestamp)


def status(arguments: argparse.Namespace) -> int:
    """Print the states of a run's outputs, or of all outputs below a prefix; those at work come first.

    Raises:
        CommandError: There is no such DAG.
        ExperimentError: Its steps cannot be resolved, or nothing gives a prefix.
        StoreUnavailableError: The store does not answer.
    """
    if arguments.dag_id:
        run = load_experiment(arguments.dag_id).run(RunChoice.of(arguments))
        prefix, paths = run.prefix, [step.output_path for _, step in run.tasks]
    else:
        prefix = default_prefix(arguments.prefix)
        paths = list(find_outputs(prefix))
    found = statuses(paths, read_records(paths))
    if arguments.json:
        write_lines(json_lines([asdict(output) | {"state": output.state.value} for output in found]))
    else:
        write_lines(table(found, prefix, time.time()))
    return 0


def statuses(paths: Sequence[str], records: Mapping[str, Record]) -> list[OutputStatus]:
    """The status of each path, those at work first."""
    found = [OutputStatus.of(path, records[path]) for path in dict.fromkeys(paths)]
    return sorted(found, key=lambda output: output.state is not RecordState.AT_WORK)


def table(found: Sequence[OutputStatus], prefix: str, now: float) -> list[str]:
    """The statuses in columns under a head."""
    return aligned([_HEAD, *(_row(output, prefix, now) for output in found)])


def _row(output: OutputStatus, prefix: str, now: float) -> tuple[str, ...]:
    below = output.output_path.removeprefix(posixpath.join(prefix, ""))
    since = "-" if output.since is None else age_text(now - output.since)
    return output.state.value, below, str(output.attempt or "-"), since, output.producer or "-", output.job or "-"
