"""A child of the driver on its own node, and the errors that children leave beside the attempt.

A child leaves at most one error: ``error-R.json`` for rank R of a first start, ``error-R.K.json`` after K restarts, so
that the error of an earlier start is never taken for that of the last.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Final

from tradewind.attempts.spec_digest import as_stdin_file
from tradewind.records.attempts import Attempt, AttemptError, attempt_folder
from tradewind.records.parsing import RecordFormatError, parse
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import guarded, has_children, kill_descendants
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import list_names, read_contents, write_text

EXIT_GAVE_UP: Final = 76
"""Exit code of a child that could not go on without a fault of its function."""
_ERROR_FILE: Final = re.compile(r"error-(?P<rank>[0-9]{1,6})(?:\.(?P<restart>[0-9]{1,6}))?\.json")


def run_guarded_child(
    command: Sequence[str], env: Mapping[str, str], term: LeaseDeadline, given: Attempt | None = None
) -> int | None:
    """Run the child under a guard, which ends it and all that it started when this driver stops or dies.

    Returns its exit code; None if the end of the term has ended it.

    The same happens at the end of ``term``, whatever this driver does then. Where something kills the guard itself, its
    orphans come to this driver, which ends them. ``given`` is the attempt that the child gets as its standard input.
    """
    with nullcontext() if given is None else as_stdin_file(given) as stdin:
        guard = subprocess.Popen(
            guarded(command, watch=[], with_input=given is not None, term=term.descriptor),
            env=env,
            stdin=stdin,
            start_new_session=True,
            pass_fds=[term.descriptor],
        )
    try:
        code = guard.wait()
        return None if term.has_ended(guard.pid) else code
    except BaseException:
        guard.terminate()
        guard.wait()
        raise
    finally:
        if has_children():
            kill_descendants(os.getpid())


def give_up_reason(code: int | None) -> str | None:
    """Why a child that ended so, without an error of its function, was not let go on, if that is so."""
    if code is None:
        return (
            "the step's process was ended, because the term of its lease was over: it had not been renewed in time, as "
            "when this machine was suspended, its keeper or the guard of that process frozen, or the store not to be "
            "reached. This attempt does not count."
        )
    return "the store did not take the step's result: this attempt does not count." if code == EXIT_GAVE_UP else None


def kill_reason(number: int) -> str:
    """What is to be said of a child that a signal ended before its function returned or raised."""
    name = next((known.name for known in signal.Signals if known == number), "unknown")
    perhaps = ", perhaps because the machine was out of memory" if number == signal.SIGKILL else ""
    return f"the step's process was killed by signal {number} ({name}) without an error{perhaps}."


def write_error(output_path: str, attempt: int, error: AttemptError, rank: int = 0, restart: int = 0) -> None:
    """Write down the error of a child."""
    name = f"error-{rank}.{restart}.json" if restart else f"error-{rank}.json"
    write_text(posixpath.join(attempt_folder(output_path, attempt), name), json.dumps(asdict(error)))


def read_error(output_path: str, attempt: int, restart: int = 0, printed: str | None = None) -> AttemptError | None:
    """The error that a child left after so many restarts: the one that was printed so, else the one of lowest rank.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    folder = attempt_folder(output_path, attempt)
    names = [match for name in list_names(folder) if (match := _ERROR_FILE.fullmatch(name))]
    ranks = sorted((int(match["rank"]), match.string) for match in names if int(match["restart"] or 0) == restart)
    found = [error for _, name in ranks if (error := _read_error(posixpath.join(folder, name))) is not None]
    first = next((error for error in found if printed and printed.strip() in error.traceback), None)
    return first or next(iter(found), None)


def _read_error(file: str) -> AttemptError | None:
    """The error in a file; None if it is gone, or is none, which only its child could have told."""
    found = read_contents([file]).get(file)
    if found is None:
        return None
    try:
        if found.flaw is not None:
            raise RecordFormatError(found.flaw)
        return AttemptError.of(parse(found.text))
    except RecordFormatError as flaw:
        print(f"tradewind: {BadRecordError(file, str(flaw))}", flush=True)
        return None
