"""The commands that lead to clusters, their machines and logs, and their options, as plain data."""

from __future__ import annotations

import argparse
from typing import Final

from tradewind.cli.fleet.which_options import WHICH_CLUSTER
from tradewind.cli.options import Command, Option, count, option, port

HEAD_WORD: Final = "head"
"""What ``--host`` calls the head."""

DASHBOARD: Final = Command(
    "dashboard",
    "open the dashboard of a cluster, or those of several on one page, until Ctrl-C",
    (
        option("names", metavar="CLUSTER", nargs="*", help="the clusters; default: default_cluster of the file"),
        option("--all", action="store_true", help="every cluster of the file"),
        option("--open", action=argparse.BooleanOptionalAction, default=True, help="in a browser"),
        option("--port", metavar="N", type=port, default=0, help="of the page; default: a free one"),
        *WHICH_CLUSTER,
    ),
    "Ray asks for the token: 'tradewind cluster auth' copies it.",
)
ANNOUNCE: Final = Command(
    "announce",
    "tell people about a cluster, through the notifiers of Airflow's configuration",
    (
        option("name", metavar="CLUSTER", nargs="?", help="what it is about"),
        option("message", metavar="MESSAGE", help="what they are told"),
        option("--all", action="store_true", help="it is about every cluster of the file"),
        option("--dry-run", action="store_true", help="only say through which notifiers"),
        *WHICH_CLUSTER,
    ),
)
_RUN_ENV: Final = ("auto", "docker", "host")
_WHERE: Final = "in Ray's container (docker) or on the machine (host); auto: in the container if it runs"


def _words(what: str) -> Option:
    return option("words", nargs=argparse.REMAINDER, metavar=what, help="what to run there is behind --")


_HOSTS: Final = (
    option(
        "--host", metavar="SLICE[:N]", action="append", default=[],
        help=f"all hosts of this slice, one of them, the one with this address, or '{HEAD_WORD}'; repeatable; "
        "default: the head",
    ),
    option("--all-hosts", action="store_true", help="every host of every slice that is READY"),
)  # fmt: skip
SSH_HEAD: Final = Command(
    "ssh-head",
    "a shell on the head of a cluster",
    (
        option("--run-env", choices=_RUN_ENV, default="auto", help=f"{_WHERE}; default: auto"),
        *WHICH_CLUSTER,
        _words("[CLUSTER] [-- COMMAND ...]"),
    ),
    "Ends with what the shell or the command ended with.",
)
SSH_TPU: Final = Command(
    "ssh-tpu",
    "a shell on a host of a slice",
    (
        option("--run-env", choices=_RUN_ENV, default="host", help=f"{_WHERE}; default: host"),
        *WHICH_CLUSTER,
        _words("[CLUSTER] SLICE[:N] [-- COMMAND ...]"),
    ),
    "The host may be given by its address too. Ends with what the shell or the command ended with.",
)
EXEC: Final = Command(
    "exec",
    "run a command on the head of a cluster, or on hosts of its slices",
    (
        *_HOSTS,
        option("--run-env", choices=_RUN_ENV, default="auto", help=f"{_WHERE}; default: auto"),
        *WHICH_CLUSTER,
        _words("[CLUSTER] -- COMMAND ..."),
    ),
    "One word behind -- is a line for the shell there; several are a command and its arguments as they are. Ends with "
    "what the command ended with; of several machines with 1 if it was not 0 on all.",
)
SHOW_LOGS: Final = Command(
    "show-logs",
    "print the end of Ray's logs on the head of a cluster, or on hosts of its slices",
    (
        option("name", metavar="CLUSTER", nargs="?", help="the cluster; default: default_cluster of the file"),
        *_HOSTS,
        option("-n", "--lines", "--tail", metavar="N", type=count, default=100, help="of each log; default 100"),
        option("-f", "--follow", action="store_true", help="go on until Ctrl-C"),
        option(
            "--file", metavar="PATTERN", action="append", default=[],
            help="only logs of this name, such as raylet.out or 'worker-*'; repeatable",
        ),
        *WHICH_CLUSTER,
    ),
)  # fmt: skip
MONITOR: Final = Command(
    "monitor",
    "follow the autoscaler's log of a cluster until Ctrl-C",
    (
        option("name", metavar="CLUSTER", nargs="?", help="the cluster; default: default_cluster of the file"),
        option("-n", "--lines", metavar="N", type=count, default=100, help="from so many lines before; default 100"),
        *WHICH_CLUSTER,
    ),
)
PUSH_ENV: Final = Command(
    "push-env",
    "bring the environment of the fleet file to the hosts of a cluster that runs",
    (
        option("name", metavar="CLUSTER", nargs="?", help="the cluster; default: default_cluster of the file"),
        option(
            "--host", metavar="SLICE[:N]", action="append", default=[],
            help=f"only all hosts of this slice, one of them, the one with this address, or '{HEAD_WORD}'; "
            "repeatable; default: the head and every host",
        ),
        option("--dry-run", action="store_true", help="write nothing; say what differs"),
        option("--json", action="store_true", help="as JSON"),
        *WHICH_CLUSTER,
    ),
    "Each host fetches the newest versions from Secret Manager itself. Ray is not restarted, so its processes keep the "
    "variables that they have; the command says which. The token is not touched: see rotate-token. Ends with 1 if a "
    "host was not reached or could not do it.",
)  # fmt: skip
ACCESS: Final = (DASHBOARD, SSH_HEAD, SSH_TPU, EXEC, SHOW_LOGS, MONITOR, PUSH_ENV, ANNOUNCE)
