"""Holds a marker and runs what stands where Ray's launcher does: ``python -m`` with the path and the heartbeat.

It prints ``launched`` once that runs, which would take ten minutes, and last the name of the error that ended it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tradewind.fleet.errors import FleetError
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.lock import ClusterLock

SLOW = ("sh", "-c", "sleep 600 & echo launched; wait")


def tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    try:
        with ClusterLock("here", sys.argv[1]).take("start", "making", heartbeat_s=float(sys.argv[2])) as held:
            RayLauncher(Path("here.yaml"), tell, SLOW).up(held)
            tell("done")
    except FleetError as error:
        tell(type(error).__name__)
