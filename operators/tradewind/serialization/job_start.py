"""How a job starts Tradewind on a cluster: in which Python, and with which copy of the package.

The package travels with each job unless ``ship`` is ``never``: Ray uploads it once per content. Only the job itself can
tell what its node has, without a further job and without a race. So the job's own start decides: ``auto`` leaves the
copy for an installed package of the same version. It also ends the job before it touches the lease if the node lacks
something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tradewind._version import __version__
from tradewind.serialization import preflight
from tradewind.serialization.shipping import ship_tradewind

Ship = Literal["auto", "always", "never"]
SHIP: Final[tuple[Ship, ...]] = ("auto", "always", "never")
_PREFIX: Final = 'exec sh -c "$TRADEWIND_START" '
_OWN_PYTHON: Final = ("pip", "uv", "conda", "py_executable", "image_uri", "container")
"""Fields for which Ray makes another Python for the job, and puts it first on the PATH."""
# The raylet's command line holds the Python of its workers; /proc/PID/exe would be the one around a venv.
_SHELL: Final = f"""\
named=$TRADEWIND_PYTHON at=$$ ray=
while [ -z "$ray" ] && [ "${{at:-1}}" -gt 1 ] && [ -r "/proc/$at/cmdline" ]; do
  ray=$(tr '\\0' '\\n' <"/proc/$at/cmdline" |
    sed -n 's/^--python_worker_command="\\{{0,1\\}}\\([^" ]*\\)[" ].*/\\1/p')
  at=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$at/status")
done
[ -n "$TRADEWIND_PATH_PYTHON" ] && python=python || python=${{named:-${{ray:-python}}}}
if ! command -v "$python" >/dev/null; then
  echo "Python $python was not found on $(hostname), where Ray's workers run in ${{ray:-an unknown Python}}: correct \
'python' of the connection."
  exit {preflight.EXIT_UNUSABLE}
fi
IFS=:
for folder in $PYTHONPATH; do
  file=$folder/tradewind/serialization/preflight.py
  [ -f "$file" ] && exec "$python" "$file" "$@"
done
exec "$python" -c "$TRADEWIND_PREFLIGHT" "$@"
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
    runtime_env: Mapping[str, Any], start: JobStart, needs: Sequence[str] = (), *, ships: bool = True
) -> dict[str, Any]:
    """Return ``runtime_env`` for an entrypoint of ``start_command``; ``needs`` are modules that do not travel."""
    ship = start.ship if ships else "never"
    variables = {
        "TRADEWIND_START": _SHELL,
        "TRADEWIND_START_OPTIONS": json.dumps({"ship": ship, "version": __version__, "needs": list(needs)}),
    }
    if start.python:
        variables["TRADEWIND_PYTHON"] = start.python
    elif any(runtime_env.get(field) for field in _OWN_PYTHON):
        variables["TRADEWIND_PATH_PYTHON"] = "1"
    ready = {**runtime_env, "env_vars": {**(runtime_env.get("env_vars") or {}), **variables}}
    if ship != "never":
        return ship_tradewind(ready)
    ready["env_vars"]["TRADEWIND_PREFLIGHT"] = Path(preflight.__file__).read_text(encoding="utf-8")
    return ready


def start_command(command: str) -> str:
    """Return the entrypoint that starts ``command``, ``python -u -m MODULE ...``, in the right Python."""
    return _PREFIX + command
