"""``tradewind cluster validate``: what is wrong with cluster files, before ``ray up`` meets it on paid machines."""

from __future__ import annotations

import argparse
from pathlib import Path

from tradewind.cli.errors import CommandError
from tradewind.cli.output import say, write_lines
from tradewind.fleet.configs.validation import check_cluster_file
from tradewind.fleet.errors import BadFileError


def validate_files(arguments: argparse.Namespace) -> int:
    """Check every file; the problems of all of them are the output.

    Raises:
        CommandError: There are any.
        FleetError: Google's client for Python is not installed.
    """
    bad = 0
    for file in arguments.files:
        try:
            check_cluster_file(Path(file))
        except BadFileError as error:
            write_lines(str(error).splitlines())
            bad += 1
    if bad:
        raise CommandError(f"{bad} of {len(arguments.files)} files cannot be used as they are.")
    say(f"{len(arguments.files)} files are right, as far as can be told without asking Google Cloud.")
    return 0
