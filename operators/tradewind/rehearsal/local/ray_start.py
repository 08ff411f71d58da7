"""``ray start`` without what nobody asks a local cluster for: Ray Serve's commands, and a server for Ray Client.

Run as ``python -m tradewind.rehearsal.local.ray_start start OPTIONS...``. To import the one takes half of the CPU that
starting a host takes, to start the other a fifth of a head's. Workers start by ``setup_worker``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

WORKER: Final = Path(__file__).with_name("setup_worker.py")


def main() -> None:
    """What ``ray`` would do with this command line."""
    sys.modules["ray.serve"] = None  # type: ignore[assignment]  # Ray then goes on without, as if it were not installed
    from ray._private.node import Node
    from ray._private.parameter import RayParams
    from ray.scripts.scripts import main as ray

    Node.start_ray_client_server = _nothing  # type: ignore[method-assign]
    RayParams.setup_worker_path = property(lambda self: str(WORKER), _nothing)  # type: ignore[assignment]
    ray()


def _nothing(self: Any, value: Any = None) -> None:
    """In place of a start, or of another worker's."""


if __name__ == "__main__":
    main()
