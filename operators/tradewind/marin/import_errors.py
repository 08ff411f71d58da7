"""Errors of single files of a folder, shown by Airflow beside the DAGs of the others.

An error that a DAG file raises takes all of its DAGs. Airflow keeps errors by the file that they name, though, and its
importer's result holds any number of them. It hands that result to nobody, so it is looked up on the stack; where there
is none (a script, another Airflow), the log has the errors.
"""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

logger = logging.getLogger(__name__)


def show_import_error(file: str, message: str) -> None:
    """Have Airflow show ``message`` as the import error of ``file``."""
    logger.error("%s", message)
    result = _result()
    if result is not None:
        from airflow.dag_processing.importers.base import DagImportError

        result.errors.append(DagImportError(file_path=file, message=message, error_type="import", stacktrace=message))


def _result() -> Any:
    """What Airflow's importer collects for the DAG file that is being imported, or None."""
    base = sys.modules.get("airflow.dag_processing.importers.base")
    kind = getattr(base, "DagImportResult", None)
    frame: types.FrameType | None = sys._getframe(1)
    while kind is not None and frame is not None:
        if isinstance(found := frame.f_locals.get("result"), kind):
            return found
        frame = frame.f_back
    return None
