"""Running a step's driver in the Airflow worker, for steps that ask for it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tradewind.records.attempts import Attempt
from tradewind.runtime.driver.process_guard import guarded
from tradewind.turns.claimed import GIVEN, arguments_of, as_input

_DATABASE: Final = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_NO_DATABASE: Final = "sqlite://"
"""Airflow keeps its tasks from the database with an address that no child could import Airflow with; this one can."""


def run_in_worker(attempt: Attempt, code_folder: Path, log: logging.Logger) -> int:
    """Run the driver of one attempt as a process that dies with this worker; its output goes to ``log``.

    The driver gets the attempt from this process: what somebody writes into the bucket never runs here.

    Returns:
        The exit code, or minus the signal that ended it.
    """
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_step", *arguments_of(GIVEN, attempt)]
    env = {**os.environ, _DATABASE: _NO_DATABASE} if _DATABASE in os.environ else None
    with (
        as_input(attempt) as given,
        subprocess.Popen(
            guarded(command, watch=[], with_input=True),
            cwd=code_folder,
            env=env,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as driver,
    ):
        assert driver.stdout is not None
        for line in driver.stdout:
            log.info("%s", line.rstrip("\n"))
    return driver.returncode
