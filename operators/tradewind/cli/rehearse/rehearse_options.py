"""The commands of ``tradewind rehearse`` and their options, as plain data."""

from __future__ import annotations

import argparse
from typing import Final

from tradewind.cli.options import Command, option, seconds
from tradewind.cli.rehearse.drill_options import DRILL

REHEARSE_SUMMARY: Final = "a Google Cloud with TPU slices on this machine, and what can go wrong with them"
REHEARSE_GROUP: Final = "rehearse "
"""Before the names of its commands, some of which others have too."""
DEFAULT_FOLDER: Final = ".rehearsal"
_MOST_SLICES: Final = 26  # as many as there are letters


def slices(text: str) -> tuple[str, int]:
    """``v4-16=2``: a slice type and how many of it."""
    name, equals, number = text.partition("=")
    count = number if equals else "1"
    if not name or not count.isdecimal() or not 1 <= int(count) <= _MOST_SLICES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of slices: write TYPE=COUNT, such as v4-16=2")
    return name, int(count)


_JSON: Final = option("--json", action="store_true", help="print JSON, for programs")
_FOLDER: Final = option(
    "--dir", metavar="FOLDER", dest="folder", default=DEFAULT_FOLDER,
    help=f"where the rehearsal keeps its files; default {DEFAULT_FOLDER} in the current folder",
)  # fmt: skip
_CLUSTER: Final = option(
    "--cluster", metavar="NAME", default=None, help="which of the clusters, if a fleet is rehearsed and has several"
)

UP: Final = Command(
    "up",
    "start a rehearsal in the background, and print what a shell needs to talk to it",
    (
        option("--slices", metavar="TYPE=COUNT", type=slices, nargs="+", action="extend", default=None,
               help="the slices that are there at first, such as v4-16=2; default v4-16=1"),
        option("--zone", metavar="ZONE", default=None, help="its zone; default us-central2-b"),
        option("--fleet", metavar="FILE", default=None,
               help="rehearse clusters of this fleet file, each with the minimum of slices that it has there"),
        option("--cluster", metavar="NAME", nargs="+", action="extend", default=[], dest="clusters",
               help="which clusters of the fleet; default: its default one"),
        option("--airflow", action="store_true", help="also an Airflow, whose cluster it is"),
        option("--dags", metavar="FOLDER", default="dags", help="the DAGs folder of that Airflow; default dags"),
        option("--timeout", metavar="SECONDS", type=seconds, default=600.0,
               help="how long it may take until it is up; default 600"),
        _FOLDER,
    ),
    "The lines on standard output set a shell's environment: eval \"$(tradewind rehearse up)\".",
)  # fmt: skip
STATUS: Final = Command("status", "print its slices, their hosts and their states", (_JSON, _CLUSTER, _FOLDER))
PREEMPT: Final = Command(
    "preempt",
    "take a slice away: SIGKILL for everything on its hosts",
    (
        option("name", metavar="NAME", help="the slice"),
        option("--notice", metavar="SECONDS", type=seconds,
               help="tell its hosts so long before, as Google does with 30; default: not at all"),
        _CLUSTER,
        _FOLDER,
    ),
)  # fmt: skip
STOCKOUT: Final = Command(
    "stockout",
    "let the zone have no more slices to give, or let it have them again",
    (option("switch", metavar="on|off", choices=("on", "off"), help="whether it is out of stock"), _CLUSTER, _FOLDER),
)
DOWN: Final = Command("down", "stop every process of the rehearsal", (_FOLDER,))
REHEARSE: Final = (UP, STATUS, PREEMPT, STOCKOUT, DRILL, DOWN)
