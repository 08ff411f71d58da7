"""Setup of commands that read Airflow's database. Their results keep standard output to themselves."""

from __future__ import annotations

import logging
import os
from typing import Final

_SAID_BY_US: Final = ("airflow.models.crypto", "googleapiclient.http")
"""Loggers whose warnings are noise: about a database without passwords, and requests whose failure we report."""


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
    for name in _SAID_BY_US:
        logging.getLogger(name).setLevel(logging.ERROR)
