"""Standby process: does its imports before it is needed, and uses no device until then.

The actor on a host of a free slice runs ``python -m tradewind.runtime.pods.on_host.standby_process MODULE
ARGUMENTS...``. The process imports what MODULE will need, waits for one line with the variables of its rank, and
continues like ``python -m MODULE ARGUMENTS...``. If the actor dies, standard input ends without a line, and it exits.
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
"""The variables that differ between starts; a standby process gets them with its rank."""
_STEP: Final = "tradewind.runtime.driver.run_function"


def supports_standby(command: Sequence[str]) -> bool:
    """Whether the command can be started early: ``python -m MODULE`` can."""
    return "-m" in command[1:3]


def standby_command(command: Sequence[str]) -> list[str]:
    """Return the command line of the standby process for ``command``."""
    at = list(command).index("-m")
    return [*command[: at + 1], __name__, *command[at + 1 :]]


def stable_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are the same for every start."""
    return {name: value for name, value in env.items() if name not in CHANGING}


def main() -> None:
    """Import, wait for the line, then run the module."""
    module, arguments = sys.argv[1], sys.argv[2:]
    with suppress(Exception):  # the real run repeats the error and reports it
        _import_for(module, arguments)
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    os.environ.update(json.loads(line))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def import_quickly(modules: Iterable[str]) -> None:
    """Import large libraries with the garbage collector disabled, and freeze their objects.

    The collector would scan them again and again: a sixth of the time of importing Levanter, and a part of every later
    collection in a training.
    """
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
    """Import what the module needs; for a step, what its function and config need, and JAX, which starts no device."""
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
