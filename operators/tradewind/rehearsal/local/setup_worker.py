"""Start a Ray worker in its runtime environment like Ray's ``setup_worker.py``, without importing Ray.

That import is a third of a worker's start CPU. A node of ``ray_start`` runs this file by its path, with the worker's
arguments and two options for this file alone.

The environment is that of ``ray._private.runtime_env.context.RuntimeEnvContext`` of Ray 2.60 for the same arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from typing import Any

_UNSET = re.compile(r"\$\{[A-Z0-9_]+\}")


def main(argv: list[str]) -> None:
    """Replace this process by the worker."""
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--serialized-runtime-env-context", default="{}", type=json.loads)
    options.add_argument("--language")
    known, worker = options.parse_known_args(argv)
    context: dict[str, Any] = known.serialized_runtime_env_context
    for name, value in (context.get("env_vars") or {}).items():
        os.environ[name] = _UNSET.sub("", os.path.expandvars(value))
    worker[0] = context.get("override_worker_entrypoint") or worker[0]
    command = ["exec", context.get("py_executable") or sys.executable, *map(shlex.quote, worker)]
    os.execvp("bash", ["bash", "-c", " ".join([*(context.get("command_prefix") or []), *command])])


if __name__ == "__main__":
    main(sys.argv[1:])
