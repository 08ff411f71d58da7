"""Start an entrypoint in the Python in which Ray runs its workers, whatever the ``PATH`` of the cluster says.

Where Ray was started by its full path, ``python`` is another one, perhaps without Ray. The commands of users keep it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

EXIT_UNUSABLE: Final = 69
"""EX_UNAVAILABLE of sysexits.h: a node lacks what the entrypoint needs. The last line says what."""
START_VARIABLE: Final = "TRADEWIND_START"
_NAMED: Final = "TRADEWIND_PYTHON"
_PREFIX: Final = f'exec sh -c "${START_VARIABLE}" '
_ON_THE_PATH: Final = ("pip", "uv", "conda", "image_uri", "container")
"""Fields for which Ray makes another Python for the job, and puts it first on the PATH."""
_OTHER_VERSION: Final = ("conda", "image_uri", "container")
# The raylet's command line holds the Python of its workers; /proc/PID/exe would be the one around a venv.
FIND_PYTHON: Final = f"""\
at=$$ ray=
while [ -z "$ray" ] && [ "${{at:-1}}" -gt 1 ] && [ -r "/proc/$at/cmdline" ]; do
  ray=$(tr '\\0' '\\n' <"/proc/$at/cmdline" |
    sed -n 's/^--python_worker_command="\\{{0,1\\}}\\([^" ]*\\)[" ].*/\\1/p')
  at=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$at/status")
done
python=${{{_NAMED}:-${{ray:-python}}}}
if ! command -v "${{python%% *}}" >/dev/null; then
  echo "Python $python was not found on $(hostname), where Ray's workers run in ${{ray:-an unknown Python}}: correct \
'python' of the connection."
  exit {EXIT_UNUSABLE}
fi
"""
"""Shell script that sets ``python``, which may be a command with options, or exits."""


def python_variables(runtime_env: Mapping[str, Any], named: str | None) -> dict[str, str]:
    """Return the variables by which ``FIND_PYTHON`` finds the interpreter ``named``, or that of ``runtime_env``."""
    on_the_path = "python" if any(runtime_env.get(field) for field in _ON_THE_PATH) else None
    python = named or runtime_env.get("py_executable") or on_the_path
    return {_NAMED: python} if python else {}


def start_command(command: str) -> str:
    """Return the entrypoint that runs the script in ``TRADEWIND_START`` with the arguments of ``command``."""
    return _PREFIX + command


def command_of_ray(arguments: Sequence[str]) -> str:
    """Return the entrypoint that runs Ray's own Python with ``arguments``, without any variable."""
    return "exec " + shlex.join(["sh", "-c", f'{FIND_PYTHON}exec $python "$@"', "python", *arguments])


def has_version_of_ray(entrypoint: str, runtime_env: Mapping[str, Any]) -> bool:
    """Whether ``entrypoint`` is one of ``start_command`` that runs in the version of Python in which Ray runs."""
    named = (runtime_env.get("env_vars") or {}).get(_NAMED, "python")
    is_own = named == "python" and not any(runtime_env.get(field) for field in _OTHER_VERSION)
    return is_own and entrypoint.startswith(_PREFIX)
