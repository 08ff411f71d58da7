"""Running a step's driver in the Airflow worker, for steps that ask for it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path


def run_in_worker(attempt_file: str, code_folder: Path, log: logging.Logger) -> None:
    """Run the driver of one attempt as a process of this worker; its output goes to ``log``, its end to the record."""
    command = [sys.executable, "-u", "-m", "tradewind.runtime.run_step", attempt_file]
    with subprocess.Popen(
        command, cwd=code_folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            log.info("%s", line.rstrip("\n"))
