"""The commands about slices that people make, and their options, as plain data."""

from __future__ import annotations

import argparse
from typing import Final

from tradewind.cli.fleet.which_options import WHICH_FLEET
from tradewind.cli.options import Command, option

_NAME: Final = option("name", metavar="CLUSTER", help="the cluster")
_SLICE: Final = option("slice", metavar="SLICE", help="the slice, by its name")
_YES: Final = option("--yes", "-y", action="store_true", help="do not ask")
_WAIT: Final = (
    option("--wait", action=argparse.BooleanOptionalAction, default=True, help="return when Google says READY"),
    option("--timeout", metavar="SECONDS", type=float, default=1800.0, help="wait for so long; default: 1800"),
)

ADD_WORKER: Final = Command(
    "add-worker",
    "add a slice to a cluster that its autoscaler neither makes nor deletes",
    (
        _NAME,
        option("type", metavar="TYPE", help="its type, such as v4-128"),
        option(
            "--capacity", choices=("preemptible", "reserved", "best-effort"),
            help="what it stands on; default: the cluster's",
        ),
        option("--slice", metavar="SLICE", help="its name; default: a new one"),
        *_WAIT, *WHICH_FLEET,
    ),
    "Its hosts join Ray by themselves, and join a restarted head again. With --slice it can be run again after an "
    "interruption.",
)  # fmt: skip
REMOVE_WORKER: Final = Command(
    "remove-worker",
    "delete a slice that somebody added, if nobody uses it",
    (_NAME, _SLICE, _YES, *WHICH_FLEET),
)
RESIZE: Final = Command(
    "resize",
    "put smaller slices in the place of one that somebody added, if nobody uses it",
    (
        _NAME,
        _SLICE,
        option("type", metavar="TYPE", nargs="+", help="the types of the new ones, such as v4-64 v4-64"),
        *(_YES, *_WAIT, *WHICH_FLEET),
    ),
    "Run again after an interruption, it goes on where it was.",
)
WORKERS: Final = (ADD_WORKER, REMOVE_WORKER, RESIZE)
