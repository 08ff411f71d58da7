"""Running a step's driver in the Airflow worker, for steps that ask for it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tradewind.runtime.process_guard import guarded

_DATABASE: Final = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_NO_DATABASE: Final = "sqlite://"
"""Airflow keeps its tasks from the database with an address that no child could import Airflow with; this one can."""


def run_in_worker(attempt_file: str, code_folder: Path, log: logging.Logger) -> int:
    """Run the driver of one attempt as a process that dies with this worker; its output goes to ``log``.

    Returns:
        The exit code, or minus the signal that ended it.
    """
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_step", attempt_file]
    env = {**os.environ, _DATABASE: _NO_DATABASE} if _DATABASE in os.environ else None
    with subprocess.Popen(
        guarded(command, watch=[]),
        cwd=code_folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            log.info("%s", line.rstrip("\n"))
    return driver.returncode
