"""The options that say which fleet file and which of its clusters are meant, as plain data."""

from __future__ import annotations

import argparse
from typing import Final

from tradewind.cli.options import option

FLEET: Final = option(
    "--fleet", metavar="PATH",
    help="the fleet file; default: TRADEWIND_FLEET, else [tradewind] fleet_file, else infra/fleet.yaml",
)  # fmt: skip
CONFIG: Final = option(
    "--config", metavar="FILE", default=argparse.SUPPRESS,
    help="the fleet file, or the generated file of a cluster, such as infra/clusters/us-central2.yaml",
)  # fmt: skip
CLUSTER: Final = option(
    "--cluster", metavar="NAME|PATH", action="append", default=argparse.SUPPRESS,
    help="the cluster, in the place of CLUSTER: its name, or the path of its generated file",
)  # fmt: skip
WHICH_FLEET: Final = (CONFIG, FLEET)
"""Of commands that are about the whole file, or whose first word is a cluster in any case."""
WHICH_CLUSTER: Final = (CLUSTER, CONFIG, FLEET)
"""Of commands about clusters. What is given before the command, as ``cluster --config FILE start``, is the same."""
