"""``tradewind evaluations``: print the scores of all evaluations below a prefix, the newest last."""

from __future__ import annotations

import argparse
import posixpath

from tradewind.cli.experiments.load import default_prefix
from tradewind.cli.output import CommandError, json_lines, say, write_lines
from tradewind.evaluation.compiled import markdown_rows, score_rows
from tradewind.evaluation.evaluated import Subject, evaluations_below
from tradewind.text import escape_control_characters, format_columns


def evaluations(arguments: argparse.Namespace) -> int:
    """Print a row for each score, labelled by the output; say which records cannot be read.

    Raises:
        CommandError: No evaluation has the task.
        ExperimentError: There is no prefix.
        StoreUnavailableError: The store does not answer.
    """
    prefix = default_prefix(arguments.prefix)
    records, reasons = evaluations_below(prefix)
    for reason in reasons:
        say(reason)
    if arguments.tasks:
        records = {path: record.only(arguments.tasks) for path, record in records.items()}
        records = {path: record for path, record in records.items() if record.tasks or record.groups}
        if not records:
            raise CommandError(f"No evaluation below {prefix} has {' or '.join(arguments.tasks)}.")
    newest = sorted(records, key=lambda path: (records[path].started_at, path))
    start = posixpath.join(prefix, "")
    subjects = [Subject(path.removeprefix(start), {path: records[path]}) for path in newest]
    if arguments.json:
        write_lines(json_lines([row for subject in subjects for row in score_rows(subject)]))
    else:
        write_lines([escape_control_characters(line) for line in format_columns(markdown_rows(subjects))])
    return 0
