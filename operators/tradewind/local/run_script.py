"""The command line of an experiment file that is run as a script: the same steps with the same records."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tradewind.calls.errors import SpecError
from tradewind.calls.references import CodeFolder
from tradewind.local.run import MOST_AT_ONCE, ExperimentFailedError, PreviousTaskFailedError, run_experiment
from tradewind.plans.places.prefixes import choose_prefix
from tradewind.plans.selection import Selection, SelectionError
from tradewind.ray_jobs.errors import BadRequestError
from tradewind.steps import ExecutorStep, ExperimentError, InputName, MissingPrefixError, RelativePrefixError
from tradewind.steps.paths import is_absolute
from tradewind.storage import StorageError

INTERRUPTED = 130


def run_script(
    steps: Sequence[ExecutorStep | InputName],
    code: Path,
    argv: Sequence[str],
    max_concurrent: int | None = None,
    allow_outside: Sequence[str] = (),
) -> None:
    """Run ``steps`` with the command line ``argv``; ends the process with 1 if one fails, 2 if the command line is bad.

    Args:
        code: The folder of the script.
        max_concurrent: How many steps run at a time, whatever the command line says.
        allow_outside: As in ``experiment_dag``.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        prefix = choose_prefix(_absolute(arguments.prefix), None, os.environ, None, lambda: None).path
        selection = _selection(arguments)
    except MissingPrefixError:
        parser.error("nothing says where outputs go: give --prefix, or set TRADEWIND_PREFIX")
    except (RelativePrefixError, SelectionError, StorageError) as error:
        parser.error(str(error))
    try:
        run_experiment(
            steps,
            prefix,
            CodeFolder(code),
            selection=selection,
            max_concurrent=max_concurrent or arguments.max_concurrent,
            dry_run=arguments.dry_run,
            caller=sys.argv[0],
            info_folder=_absolute(arguments.executor_info_base_path),
            allow_outside=allow_outside,
        )
    except (ExperimentError, SpecError, StorageError, BadRequestError) as error:
        sys.exit(f"error: {error}")
    except (ExperimentFailedError, PreviousTaskFailedError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:  # of a disk, such as a prefix that is a file
        sys.exit(f"error: {error.filename or prefix}: {error.strerror or error}: is the prefix a folder to write to?")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the steps of this experiment.", allow_abbrev=False)
    parser.add_argument("--prefix", help="where outputs go (default: TRADEWIND_PREFIX, then MARIN_PREFIX)")
    parser.add_argument(
        "--executor_info_base_path",
        metavar="PATH",
        help="where the experiment's JSON file goes (default: experiments below the prefix)",
    )
    regexes: dict[str, Any] = {"type": _regexes, "default": (), "metavar": "'[\"RE\", ...]'"}
    yes_or_no: dict[str, Any] = {"type": _boolean, "metavar": "BOOL"}
    parser.add_argument("--dry_run", default=False, **yes_or_no, help="only print the plan")
    parser.add_argument("--run_only", **regexes, help="run only the steps with these names, and what they need")
    parser.add_argument("--force", **regexes, help="make the steps with these names again, finished or not")
    parser.add_argument("--force_downstream", default=False, **yes_or_no, help="and all that reads their outputs")
    parser.add_argument("--force_run_failed", default=True, **yes_or_no, help="run failed steps again (default: true)")
    parser.add_argument(
        "--max_concurrent",
        type=_positive,
        default=MOST_AT_ONCE,
        metavar="N",
        help=f"how many steps run at a time (default: {MOST_AT_ONCE})",
    )
    return parser


def _absolute(path: str | None) -> str | None:
    """A path of the command line, which the steps need too: they run in the script's folder, wherever it was called."""
    return os.path.abspath(path) if path and not is_absolute(path) else path


def _selection(arguments: argparse.Namespace) -> Selection:
    return Selection(
        run_only=arguments.run_only,
        force=arguments.force,
        force_downstream=arguments.force_downstream,
        force_run_failed=arguments.force_run_failed,
    )


def _regexes(text: str) -> Any:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, list):
        raise argparse.ArgumentTypeError(f'write a JSON list of regular expressions, such as ["^train/"], not {text}')
    return tuple(given)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError("write true or false")
    return text.lower() == "true"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"write a whole number above zero, not {text}")
    return int(text)
