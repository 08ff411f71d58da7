"""``tradewind data run``: run a script whose pipelines ``flow_backend()`` processes, on a chosen backend."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from tradewind.cli.interrupts import Interrupted
from tradewind.cli.options import DATA
from tradewind.cli.output import CommandError, UsageError, say
from tradewind.datasets.backends import create_backend, set_flow_backend
from tradewind.datasets.stages import PipelineError


def run_script(arguments: argparse.Namespace) -> int:
    """Run the script as its own program; return its exit code.

    Raises:
        CommandError: There is no such script, an option does not take its value, or a pipeline failed.
    """
    try:
        backend = create_backend(
            arguments.backend,
            arguments.max_parallelism,
            arguments.memory,
            num_cpus=arguments.num_cpus,
            on_error=arguments.on_error,
            dry_run=arguments.dry_run,
            scratch=arguments.scratch,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not os.path.isfile(arguments.script):
        raise UsageError(f"There is no script {arguments.script}.")
    own = {flag for option in DATA.commands[0].options for flag in option.flags if flag.startswith("-")}
    if late := [argument for argument in arguments.arguments if argument.partition("=")[0] in own]:
        raise UsageError(
            f"{late[0]} follows the script, so it would be an argument of the script: put it before {arguments.script}."
        )
    set_flow_backend(backend)
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments.script)))
    try:
        runpy.run_path(arguments.script, run_name="__main__")
    except (KeyboardInterrupt, Interrupted):
        kept = f"continues from {arguments.scratch}" if arguments.scratch else "begins anew: --scratch keeps shards"
        say(f"Interrupted. The next run {kept}.")
        raise
    except PipelineError as error:
        raise CommandError(str(error)) from error
    except FileNotFoundError as error:
        raise CommandError(f"{arguments.script}: {error}") from error
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0
