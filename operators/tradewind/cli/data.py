"""``tradewind data``: run a script whose pipelines ``flow_backend()`` processes, and look into stored data."""

from __future__ import annotations

import argparse
import dataclasses
import os
import runpy
import sys
import time

from tradewind.browsing import look
from tradewind.browsing.access import Access
from tradewind.browsing.answers import Description, Entry
from tradewind.browsing.refusals import BrowsingError
from tradewind.cli.interrupts import Interrupted
from tradewind.cli.options import DATA
from tradewind.cli.output import CommandError, UsageError, json_lines, say, write_lines
from tradewind.datasets.backends import create_backend, set_flow_backend
from tradewind.datasets.stages import PipelineError
from tradewind.text import format_columns, format_value

_TIMEOUT_S = 60.0
_TEXT_BYTES = 2000


def data_command(name: str, arguments: argparse.Namespace) -> int:
    """Run a command of the group; return its exit code."""
    if name == "run":
        return run_script(arguments)
    access = Access(None, time.monotonic() + _TIMEOUT_S)  # as this user may read
    try:
        write_lines(_listed(access, arguments) if name == "ls" else _shown(access, arguments))
    except BrowsingError as error:
        raise CommandError(str(error)) from error
    return 0


def _listed(access: Access, arguments: argparse.Namespace) -> list[str]:
    page = look.list_folder(access, arguments.path, arguments.prefix, limit=arguments.limit)
    if note := page.note or ("There are more entries: narrow them by --prefix." if page.next else None):
        say(note)
    if arguments.json:
        return json_lines([dataclasses.asdict(entry) for entry in page.entries])
    return format_columns([_entry_line(entry) for entry in page.entries]) if page.entries else []


def _entry_line(entry: Entry) -> list[str]:
    made = entry.made_by
    about = [] if made is None else [made.step or "", made.state or "", made.problem or ""]
    size = "" if entry.size is None else f"{entry.size:,}"
    return [entry.name, entry.kind, size, entry.modified or "", ", ".join(filter(None, about)) or entry.format or ""]


def _shown(access: Access, arguments: argparse.Namespace) -> list[str]:
    found = look.describe(access, arguments.path)
    if "rows" not in found.views:
        lines = [] if arguments.json or found.views[:1] != ["text"] else _first_lines(access, arguments.path)
        return json_lines(dataclasses.asdict(found)) if arguments.json else [*_description_lines(found), *lines]
    columns = [name for name in arguments.columns.split(",") if name]
    asked = {"limit": arguments.rows, "filter": arguments.filter, "columns": columns, "at": arguments.at or None}
    page = look.rows(access, arguments.path, **asked)
    if arguments.json:
        return json_lines(dataclasses.asdict(page))
    if page.note:
        say(page.note)
    table = [["", *(column.name for column in page.columns)]]
    for row in page.rows:
        number = f"{row.number:,}" if row.number else row.at
        table.append([number, row.problem] if row.problem else [number, *map(format_value, row.values)])
    width = max(map(len, table))
    return [*_description_lines(found), *format_columns([[*row, *[""] * (width - len(row))] for row in table])]


def _first_lines(access: Access, path: str) -> list[str]:
    return look.text(access, path, 0, _TEXT_BYTES).text.splitlines()


def _description_lines(found: Description) -> list[str]:
    made = found.made_by
    lines = [f"{found.title}, {found.size:,} bytes" if found.size is not None else found.title]
    if made is not None:
        by = f"run {made.run_id} of {made.dag_id}" if made.run_id else made.script
        lines.append(", ".join(filter(None, [f"step {made.step}", made.version, made.state, by, made.problem])))
    lines += [f"rows: {found.rows:,}"] if found.rows is not None else []
    lines += [f"{fact.name}: {fact.value}" for fact in found.facts]
    lines += [f"{array.name}  {array.dtype}{array.shape}" for array in found.arrays]
    return [*lines, *found.notes, ""]


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
    own = {flag for option in DATA.commands[-1].options for flag in option.flags if flag.startswith("-")}
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
