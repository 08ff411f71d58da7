"""A command that runs beside Airflow: it may read Airflow's database, and standard output stays its own."""

from __future__ import annotations

import logging
import os
from typing import Final

_SAID_BY_US: Final = ("airflow.models.crypto", "googleapiclient.http")
"""Their warnings tell of a database that keeps no passwords here, and of requests whose failure is an error of ours."""


def enter_airflow() -> None:
    """Have Airflow find connections and variables in its database, as its own commands do, and log to standard error.

    Airflow logs to standard output once it is imported, where a command's result belongs.

    Raises:
        ImportError: There is no Airflow here.
    """
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    redirect_stdout_log_handlers_to_stderr()
    for name in _SAID_BY_US:
        logging.getLogger(name).setLevel(logging.ERROR)
