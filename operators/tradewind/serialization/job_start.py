"""How a job starts Tradewind on a cluster: in which Python, and with which copy of the package.

The package travels with each job unless ``ship`` is ``never``: Ray uploads it once per content. Only the job itself can
tell what its node has, without a further job and without a race. So the job's own start decides: ``auto`` leaves the
copy for an installed package of the same version. It also ends the job before it touches the lease if the node lacks
something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tradewind._version import __version__
from tradewind.ray_jobs.worker_python import FIND_PYTHON, START_VARIABLE, python_variables
from tradewind.serialization import preflight
from tradewind.serialization.shipping import ship_tradewind

Ship = Literal["auto", "always", "never"]
SHIP: Final[tuple[Ship, ...]] = ("auto", "always", "never")
_IMAGES: Final = ("image_uri", "container")
"""Fields with which Ray takes no packages."""
_SHELL: Final = f"""{FIND_PYTHON}\
IFS=:
for folder in $PYTHONPATH; do
  file=$folder/tradewind/serialization/preflight.py
  [ -f "$file" ] && unset IFS && exec $python "$file" "$@"
done
unset IFS
exec $python -c "$TRADEWIND_PREFLIGHT" "$@"
"""


@dataclass(frozen=True)
class JobStart:
    """What a cluster's connection and the settings say of it.

    Attributes:
        ship: When this package travels with a job.
        python: The interpreter; None for the one in which Ray runs its workers.
    """

    ship: Ship = "auto"
    python: str | None = None


def start_env(
    runtime_env: Mapping[str, Any], start: JobStart, needs: Mapping[str, str] | None = None, *, ships: bool = True
) -> dict[str, Any]:
    """Return ``runtime_env`` for an entrypoint of ``start_command``.

    ``needs`` are modules that do not travel, and for each the package that installs it.
    """
    is_image = any(runtime_env.get(field) for field in _IMAGES)
    ship = start.ship if ships and not is_image else "never"
    where = "in its image" if is_image else "on each node, or set ship to 'auto'"
    options = {"ship": ship, "version": __version__, "needs": dict(needs or {}), "where": where}
    variables = {
        START_VARIABLE: _SHELL,
        "TRADEWIND_START_OPTIONS": json.dumps(options),
        **python_variables(runtime_env, start.python),
    }
    ready = {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), **variables}}
    if ship != "never":
        return ship_tradewind(ready)
    ready["env_vars"]["TRADEWIND_PREFLIGHT"] = Path(preflight.__file__).read_text(encoding="utf-8")
    return ready
