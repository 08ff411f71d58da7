"""The command ``tradewind rehearse drill`` and its options, as plain data."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from tradewind.cli.options import Command, count, option, seconds

DEFAULT_FOLDER: Final = ".drill"


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, such as ``{"steps": 50}``."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object: write such as {{"steps": 50}}')
    return found


DRILL: Final = Command(
    "drill",
    "run a DAG under a seeded schedule of faults, and compare its outputs with those of an undisturbed run",
    (
        option("--seed", metavar="N", type=count, default=0, help="which schedule; default 0"),
        option("--faults", metavar="KIND", nargs="+", default=None,
               help="draw only from these: host, slice, drain, driver, head, hang, stock-out, checkpoint, store"),
        option("--count", metavar="N", type=count, default=3, help="how many faults; default 3"),
        option("--dag", metavar="DAG_ID", default=None, help="the DAG; default: a tiny training of two minutes"),
        option("--dags", metavar="FOLDER", default=None, help="the folder that has it; needed with --dag"),
        option("--conf", metavar="JSON", type=json_object, default={}, help="params of its runs, as a JSON object"),
        option("--slices", metavar="TYPE", nargs="+", default=["v4-16", "v4-16"],
               help="the slices that there are; default v4-16 v4-16"),
        option("--notice", metavar="SECONDS", type=seconds, default=10.0,
               help="how long before a preemption its notice comes; default 10"),
        option("--outage", metavar="SECONDS", type=seconds, default=60.0,
               help="how long Cloud Storage is down; default 60"),
        option("--stock-out", metavar="SECONDS", type=seconds, default=30.0, dest="stock_out",
               help="how long there are no slices; default 30"),
        option("--json", action="store_true", help="print the report as JSON, for programs"),
        option("--dir", metavar="FOLDER", dest="folder", default=DEFAULT_FOLDER,
               help=f"for logs; emptied before; default {DEFAULT_FOLDER} in the current folder"),
    ),
    "Exit code 0 if training went on after every fault, with equal outputs and nothing left behind, else 1.",
)  # fmt: skip
