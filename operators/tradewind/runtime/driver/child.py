"""A child of the driver on its own node, and the error files that children write beside the attempt.

A child writes at most one error: ``error-R.json`` for rank R of a first start, ``error-R.K.json`` after K restarts. So
the error of an earlier start is never taken for that of the last.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Final

from tradewind.attempts.spec_digest import as_stdin_file
from tradewind.records.attempts import Attempt, AttemptError, attempt_folder
from tradewind.records.parsing import RecordFormatError, parse
from tradewind.runtime.driver.fencing import LeaseDeadline
from tradewind.runtime.driver.process_guard import guard_command, has_children, kill_descendants
from tradewind.storage.errors import BadRecordError
from tradewind.storage.files import list_names, read_contents, write_text

EXIT_GAVE_UP: Final = 76
"""Exit code of a child that could not continue, though its function did not fail."""
_EXIT_OF_RAY: Final = 1
"""Ray ends a connected process, without an exception, when the cluster's head has not answered for a minute."""
_HEAD_ANSWER_S: Final = 5.0
_ERROR_FILE: Final = re.compile(r"error-(?P<rank>[0-9]{1,6})(?:\.(?P<restart>[0-9]{1,6}))?\.json")


def run_guarded_child(
    command: Sequence[str], env: Mapping[str, str], deadline: LeaseDeadline, stdin_attempt: Attempt | None = None
) -> int | None:
    """Run the child under a guard, which kills it and all its descendants when this driver stops or dies.

    The guard does the same at ``deadline``, also while this driver is frozen. If the guard itself is killed, this
    driver adopts its orphans and kills them. The child reads ``stdin_attempt`` from its standard input.

    Returns:
        The exit code; None if the deadline ended the child.
    """
    with nullcontext() if stdin_attempt is None else as_stdin_file(stdin_attempt) as stdin:
        guard = subprocess.Popen(
            guard_command(command, watch=[], with_input=stdin_attempt is not None, deadline=deadline.descriptor),
            env=env,
            stdin=stdin,
            start_new_session=True,
            pass_fds=[deadline.descriptor],
        )
    try:
        code = guard.wait()
        return None if deadline.has_ended(guard.pid) else code
    except BaseException:
        guard.terminate()
        guard.wait()
        raise
    finally:
        if has_children():
            kill_descendants(os.getpid())


def give_up_reason(code: int | None) -> str | None:
    """Return why a child with this exit code, and without an error of its function, had to stop; None if it did not."""
    if code is None:
        return (
            "the step's process was killed, because the deadline of its lease passed without a renewal: this machine "
            "was suspended, the driver or the process guard was frozen, or the store could not be reached. This "
            "attempt does not count."
        )
    if code == _EXIT_OF_RAY and is_head_lost():
        return "Ray ended the step's process, since the cluster's head does not answer. This attempt does not count."
    gave_up = "its function could not continue, or the store did not take its result, as the lines before say"
    return f"{gave_up}: this attempt does not count." if code == EXIT_GAVE_UP else None


def is_head_lost() -> bool:
    """Whether the head of the cluster that runs this driver's job refuses connections or does not answer."""
    host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
    if not host or not port.isdecimal():
        return False
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_HEAD_ANSWER_S).close()
    except OSError:
        return True
    return False


def kill_reason(number: int) -> str:
    """Describe the end of a child that a signal killed before its function returned or raised."""
    name = next((known.name for known in signal.Signals if known == number), "unknown")
    perhaps = ", perhaps because the machine was out of memory" if number == signal.SIGKILL else ""
    return f"the step's process was killed by signal {number} ({name}) without an error{perhaps}."


def write_error(output_path: str, attempt: int, error: AttemptError, rank: int = 0, restart: int = 0) -> None:
    """Write the error of a child."""
    name = f"error-{rank}.{restart}.json" if restart else f"error-{rank}.json"
    write_text(posixpath.join(attempt_folder(output_path, attempt), name), json.dumps(asdict(error)))


def read_error(output_path: str, attempt: int, restart: int = 0, printed: str | None = None) -> AttemptError | None:
    """Return the error of a child after ``restart`` restarts: the one with the ``printed`` text, else of lowest rank.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    folder = attempt_folder(output_path, attempt)
    names = [match for name in list_names(folder) if (match := _ERROR_FILE.fullmatch(name))]
    ranks = sorted((int(match["rank"]), match.string) for match in names if int(match["restart"] or 0) == restart)
    errors = [error for _, name in ranks if (error := _read_error(posixpath.join(folder, name))) is not None]
    first = next((error for error in errors if printed and printed.strip() in error.traceback), None)
    return first or next(iter(errors), None)


def _read_error(file: str) -> AttemptError | None:
    """Return the error in a file; None if the file is gone or invalid."""
    content = read_contents([file]).get(file)
    if content is None:
        return None
    try:
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        return AttemptError.of(parse(content.text))
    except RecordFormatError as error:
        print(f"tradewind: {BadRecordError(file, str(error))}", flush=True)
        return None
