"""The commands that lead to clusters, their machines and logs, and their options, as plain data."""

from __future__ import annotations

import argparse
from typing import Final

from tradewind.cli.options import Command, option, port

_FLEET: Final = option(
    "--fleet", metavar="PATH",
    help="the fleet file; default: TRADEWIND_FLEET, else [tradewind] fleet_file, else infra/fleet.yaml",
)  # fmt: skip

DASHBOARD: Final = Command(
    "dashboard",
    "open the dashboard of a cluster, or those of several on one page, until Ctrl-C",
    (
        option("names", metavar="CLUSTER", nargs="*", help="the clusters; default: default_cluster of the file"),
        option("--all", action="store_true", help="every cluster of the file"),
        option("--open", action=argparse.BooleanOptionalAction, default=True, help="in a browser"),
        option("--port", metavar="N", type=port, default=0, help="of the page; default: a free one"),
        _FLEET,
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
        _FLEET,
    ),
)
ACCESS: Final = (DASHBOARD, ANNOUNCE)
