"""``ray start`` without parts that local clusters do not use: Ray Serve's commands, Ray Client server.

Run as ``python -m tradewind.rehearsal.local.ray_start start OPTIONS...``. Importing Ray Serve takes half of a host's
start CPU, starting the Ray Client server a fifth of a head's. Workers start by ``setup_worker``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

WORKER: Final = Path(__file__).with_name("setup_worker.py")
DASHBOARD_MODULES: Final = "TRADEWIND_DASHBOARD_MODULES"
"""Environment variable: the dashboard modules that a head loads, comma-separated. Unset, it loads all.

Each module is a process. Users read the pages of all; tests call the APIs of a few.
"""


def main() -> None:
    """Run the ``ray`` command with this command line."""
    sys.modules["ray.serve"] = None  # type: ignore[assignment]  # Ray then runs as if it were not installed
    from ray._private import services
    from ray._private.node import Node
    from ray._private.parameter import RayParams
    from ray.scripts.scripts import main as ray

    Node.start_ray_client_server = _nothing  # type: ignore[method-assign]
    RayParams.setup_worker_path = property(lambda self: str(WORKER), _nothing)  # type: ignore[assignment]
    if modules := os.environ.get(DASHBOARD_MODULES):
        services.start_ray_process = _loading(modules, services.start_ray_process)
    ray()


def _loading(modules: str, start: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``start_ray_process`` with a dashboard that loads only ``modules``."""

    def start_process(command: Sequence[str], process_type: str, *args: Any, **options: Any) -> Any:
        more = [f"--modules-to-load={modules}"] if process_type == "dashboard" else []
        return start([*command, *more], process_type, *args, **options)

    return start_process


def _nothing(self: Any, value: Any = None) -> None:
    """Replace a start, or the setter of another worker path, by nothing."""


if __name__ == "__main__":
    main()
