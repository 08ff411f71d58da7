"""Hold a cluster lock and run the launcher's stand-in.

Run as ``python -m`` with the lock's path and the heartbeat interval. The process prints ``launched`` once the stand-in
runs, which would take ten minutes, and at the end the name of the error that ended it.
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
