"""Setup of commands that read Airflow's database. Their results keep standard output to themselves."""

from __future__ import annotations

import logging
import os
from typing import Final

_NOISY_LOGGERS: Final = ("airflow.models.crypto", "googleapiclient.http")
"""Their warnings are about a database without passwords, and about requests whose failure the command reports."""


def enter_airflow() -> None:
    """Let Airflow read connections and variables from its database, and log to standard error.

    Airflow's own commands read the database too. Without this call an imported Airflow logs to standard output, which
    is for the command's result.

    Raises:
        ImportError: Airflow is not installed.
    """
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    redirect_stdout_log_handlers_to_stderr()
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
