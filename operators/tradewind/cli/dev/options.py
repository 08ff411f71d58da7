"""The commands of ``tradewind dev-tpu`` and their options, as plain data."""

from __future__ import annotations

import argparse
from typing import Final

from tradewind.cli.fleet.which_options import FLEET
from tradewind.cli.options import Command, count, option, seconds

DEV_SUMMARY: Final = "a TPU slice to develop on"
DEV_GROUP: Final = "dev-tpu "
"""Before the names of its commands."""

_WHOSE: Final = (
    option(
        "--cluster", metavar="NAME|PATH",
        help="the cluster, or the path of its generated file; default: default_cluster of the fleet file",
    ),
    option("--name", metavar="NAME", help="what the slice is called, if you hold several; default: your user name"),
    FLEET,
)  # fmt: skip
_JOB: Final = option(
    "--job", metavar="ID",
    help="the job that holds the slice, if you have allocated it from another machine; nobody checks whose it is",
)  # fmt: skip
_HOST: Final = option(
    "--host", metavar="N", type=count, action="append", default=[],
    help="only on the host of this number in the slice; repeatable; default: all",
)  # fmt: skip
_RUN: Final = (
    _JOB,
    _HOST,
    option("--working-dir", metavar="DIR", default=".", help="the folder that is sent; default: this one"),
    option(
        "--exclude", metavar="PATTERN", action="append", default=[],
        help="what of it stays here, as in .gitignore; repeatable",
    ),
    option(
        "-e", "--env", nargs="+", action="append", default=[], metavar=("NAME=VALUE", ""),
        help="a variable for the command, also as NAME VALUE; repeatable",
    ),
)  # fmt: skip
_COMMAND: Final = option("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what to run there")

ALLOCATE: Final = Command(
    "allocate",
    "reserve a slice of a cluster, and hold it until this command ends",
    (
        option("type", metavar="TYPE", help="the slice type, such as v4-8"),
        *_WHOSE,
        option(
            "--wait", metavar="SECONDS", type=seconds,
            help="wait so long for one that is free; default: end at once if none is",
        ),
        option(
            "--heartbeat-timeout", metavar="SECONDS", type=seconds, default=90.0,
            help="give the slice back when this command was not heard of for so long; default 90",
        ),
    ),
    "Ctrl-C gives the slice back. What was started on it ends with it.",
)  # fmt: skip
CONNECT: Final = Command(
    "connect",
    "a shell on a slice that you hold",
    (
        *_WHOSE,
        _JOB,
        option("--host", metavar="N", type=count, default=0, help="on the host of this number; default 0"),
    ),
    "Ends with what the shell ended with.",
)
EXECUTE: Final = Command(
    "execute",
    "send this folder to a slice that you hold, and run a command in it, on all hosts at once",
    (
        *_WHOSE,
        option("--no-sync", action="store_true", help="send nothing"),
        *_RUN,
        _COMMAND,
    ),
    "What is sent is what a job would take along. Ends with what the command ended with; of several hosts with 1 if it "
    "was not 0 on all. The command ends when this one does.",
)
WATCH: Final = Command(
    "watch",
    "the same, again after each change in the folder, until Ctrl-C",
    (
        *_WHOSE,
        option(
            "--debounce", metavar="SECONDS", type=seconds, default=1.0,
            help="begin when nothing has changed for so long; default 1",
        ),
        *_RUN,
        _COMMAND,
    ),
)  # fmt: skip
DEV: Final = (ALLOCATE, CONNECT, EXECUTE, WATCH)
