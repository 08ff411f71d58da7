"""Commands of ``tradewind rehearse``, ``drill`` among them, and their options, as plain data."""

from __future__ import annotations

import argparse
from typing import Any, Final

from tradewind.cli.options import Command, CommandGroup, count, name_or_path, option, seconds
from tradewind.records.parsing import parse

DEFAULT_DRILL_FOLDER: Final = ".drill"


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object, such as ``{"steps": 50}``."""
    try:
        found = parse(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object like {{"steps": 50}}')
    return found


DRILL: Final = Command(
    "drill",
    "run a DAG under a seeded schedule of faults, and compare its outputs with those of a baseline run",
    (
        option("--seed", metavar="N", type=count, default=0, help="which schedule; default 0"),
        option("--faults", metavar="KIND", nargs="+", default=None,
               help="draw only from these: host, slice, drain, driver, head, hang, stock-out, checkpoint, store"),
        option("--count", metavar="N", type=count, default=3, help="how many faults; default 3"),
        option("--dag", metavar="DAG_ID", default=None, help="the DAG; default: a tiny training of two minutes"),
        option("--dags", metavar="FOLDER", default=None, help="the folder of the DAG; required with --dag"),
        option("--conf", metavar="JSON", type=json_object, default={}, help="params of its runs, as a JSON object"),
        option("--slices", metavar="TYPE", nargs="+", default=["v4-16", "v4-16"],
               help="the slices of the cluster; default v4-16 v4-16"),
        option("--notice", metavar="SECONDS", type=seconds, default=10.0,
               help="how long before a preemption its notice comes; default 10"),
        option("--outage", metavar="SECONDS", type=seconds, default=60.0,
               help="how long Cloud Storage is down; default 60"),
        option("--stock-out", metavar="SECONDS", type=seconds, default=30.0, dest="stock_out",
               help="how long there are no slices; default 30"),
        option("--json", action="store_true", help="print the report as JSON, for programs"),
        option("--dir", metavar="FOLDER", dest="folder", default=DEFAULT_DRILL_FOLDER,
               help=f"for logs; emptied before; default {DEFAULT_DRILL_FOLDER} in the current folder"),
    ),
    "Exit code 0 if training continued after every fault, with equal outputs and no leftovers, else 1.",
)  # fmt: skip

DEFAULT_REHEARSAL_FOLDER: Final = ".rehearsal"
MAX_SLICES: Final = 26
"""Each slice is named by a letter."""


def slices(text: str) -> tuple[str, int]:
    """Parse ``v4-16=2``: a slice type and a count."""
    name, equals, number = text.partition("=")
    count = number if equals else "1"
    if not name or not count.isdecimal() or not 1 <= int(count) <= MAX_SLICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of slices: write TYPE=COUNT, for example v4-16=2")
    return name, int(count)


_JSON: Final = option("--json", action="store_true", help="print JSON, for programs")
_FOLDER: Final = option(
    "--dir", metavar="FOLDER", dest="folder", default=DEFAULT_REHEARSAL_FOLDER,
    help=f"where the rehearsal keeps its files; default {DEFAULT_REHEARSAL_FOLDER} in the current folder",
)  # fmt: skip
_CLUSTER: Final = option(
    "--cluster",
    metavar="NAME",
    type=name_or_path,
    default=None,
    help="which of the clusters, if a fleet is rehearsed and has several",
)

UP: Final = Command(
    "up",
    "start a rehearsal in the background, and print what a shell needs to talk to it",
    (
        option("--slices", metavar="TYPE=COUNT", type=slices, nargs="+", action="extend", default=None,
               help="the initial slices, such as v4-16=2; default v4-16=1"),
        option("--zone", metavar="ZONE", default=None, help="its zone; default us-central2-b"),
        option("--fleet", metavar="FILE", type=name_or_path, default=None,
               help="rehearse clusters of this fleet file, each with its minimum of slices"),
        option("--cluster", metavar="NAME", type=name_or_path, nargs="+", action="extend", default=[], dest="clusters",
               help="which clusters of the fleet; default: its default one"),
        option("--airflow", action="store_true", help="also start an Airflow that uses the cluster"),
        option("--dags", metavar="FOLDER", default="dags", help="the DAGs folder of that Airflow; default dags"),
        option("--timeout", metavar="SECONDS", type=seconds, default=600.0,
               help="how long to wait until it is up; default 600"),
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
               help="send its hosts a notice so long before, as Google does with 30; default: no notice"),
        _CLUSTER,
        _FOLDER,
    ),
)  # fmt: skip
STOCKOUT: Final = Command(
    "stockout",
    "make the zone run out of slices, or have slices again",
    (option("switch", metavar="on|off", choices=("on", "off"), help="whether it is out of stock"), _CLUSTER, _FOLDER),
)
DOWN: Final = Command("down", "stop every process of the rehearsal", (_FOLDER,), is_destructive=True)
REHEARSE: Final = CommandGroup(
    "rehearse ",
    "an emulated Google Cloud with TPU slices on this machine, and faults of them",
    (UP, STATUS, PREEMPT, STOCKOUT, DRILL, DOWN),
)
