"""A process that has done its imports before it is needed, and touches no device until it is.

Run on a host of a free slice as ``python -m tradewind.runtime.pods.on_host.standby_process MODULE ARGUMENTS...``. It
imports what MODULE will need, waits for one line with the variables of its place, and goes on as ``python -m MODULE
ARGUMENTS...`` would. When whoever started it is gone, the line never comes, and it ends.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from tradewind.runtime.pods.process_env import FIRST_START_VARIABLE, RESTARTS_VARIABLE

CHANGING: Final = frozenset({FIRST_START_VARIABLE, RESTARTS_VARIABLE})
"""The variables that the runner gives every start anew; a process that waits gets them with its place."""
_STEP: Final = "tradewind.runtime.driver.run_function"


def supports_standby(command: Sequence[str]) -> bool:
    """Whether the command can be started early: ``python -m MODULE`` can."""
    return "-m" in command[1:3]


def standby_command(command: Sequence[str]) -> list[str]:
    """The command line of the process that waits to be ``command``."""
    at = list(command).index("-m")
    return [*command[: at + 1], __name__, *command[at + 1 :]]


def stable_env(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that are the same for every start."""
    return {name: value for name, value in env.items() if name not in CHANGING}


def main() -> None:
    """Import, wait, go on."""
    module, arguments = sys.argv[1], sys.argv[2:]
    with suppress(Exception):  # whatever is wrong comes again when it counts, and is told then
        _import_for(module, arguments)
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    os.environ.update(json.loads(line))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def import_quickly(modules: Iterable[str]) -> None:
    """Import large libraries with the garbage collector at rest: it would look through them again and again, which is
    a sixth of the time that importing Levanter takes, and every look at a training's own garbage would include them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _import_for(module: str, arguments: Sequence[str]) -> None:
    """What the module needs; of a step, what its function and its config need, and JAX, which starts no device."""
    if module != _STEP:
        importlib.util.find_spec(module)
        return
    from tradewind.attempts.spec_digest import load_claimed_spec

    _, spec = load_claimed_spec(*arguments[:2])
    import_quickly(["jax"])
    import_quickly(getattr(spec.load_function(), "warm_imports", ()))
    spec.load_config()


if __name__ == "__main__":
    main()
