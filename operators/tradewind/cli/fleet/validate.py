"""``tradewind cluster validate``: what is wrong with cluster files, before ``ray up`` meets it on paid machines.

A fleet file is taken too, since people have that one in hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tradewind.cli.errors import CommandError
from tradewind.cli.fleet.fleet_file import say_doubts
from tradewind.cli.output import say, write_lines
from tradewind.fleet.configs.validation import check_cluster_file
from tradewind.fleet.errors import BadFileError
from tradewind.fleet.file.load import load_fleet
from tradewind.fleet.file.yaml_document import read_what_can_be


def validate_files(arguments: argparse.Namespace) -> int:
    """Check every file; the problems of all of them are the output.

    Raises:
        CommandError: There are any.
        FleetError: Google's client for Python is not installed.
    """
    bad = 0
    for file in arguments.files:
        try:
            if _is_fleet_file(Path(file)):
                say_doubts(load_fleet(Path(file)).clusters.values())
            else:
                check_cluster_file(Path(file))
        except BadFileError as error:
            write_lines(str(error).splitlines())
            bad += 1
    if bad:
        raise CommandError(f"{bad} of {len(arguments.files)} files cannot be used as they are.")
    count = len(arguments.files)
    say(f"{count} {'file is' if count == 1 else 'files are'} right, as far as can be told without asking Google Cloud.")
    return 0


def _is_fleet_file(file: Path) -> bool:
    """Whether the file describes a fleet, and not one cluster for Ray's launcher."""
    content = read_what_can_be(file).value
    return isinstance(content, dict) and "clusters" in content and "cluster_name" not in content
