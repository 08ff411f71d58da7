"""XComs that a DAG file formats into texts, for which Airflow knows no dependency."""

from __future__ import annotations

import re
from typing import Any, Final

from tradewind.ray_jobs.errors import BadRequestError
from tradewind.ray_jobs.secret_patterns import texts_in

_FORMATTED: Final = re.compile(r"\{\{ task_instance\.xcom_pull\(task_ids='([^']+)', dag_id='([^']+)'")
"""What ``str`` makes of another task's output."""


def check_xcom_texts(task: Any) -> None:
    """Require that ``task`` waits for each task of its DAG whose XCom is part of a text in a templated field.

    Call it once the DAG is complete. ``f"echo {add(40, 2)}"`` reads the XCom of ``add``, but Airflow does not see that
    ``add`` has to run before.

    Raises:
        BadRequestError: It does not wait for one of them, and would read None.
    """
    formatted = [
        (field, task_id)
        for field in task.template_fields
        for _, text in texts_in(getattr(task, field, None), field)
        for task_id, dag_id in _FORMATTED.findall(text)
        if dag_id == task.dag_id
    ]
    upstream = task.get_flat_relative_ids(upstream=True) if formatted else ()
    for field, task_id in formatted:
        if task_id not in upstream:
            raise BadRequestError(
                f"Task {task.task_id!r} does not wait for task {task_id!r}, whose XCom is part of a text in {field}, "
                "and would read None: pass the XCom itself, in a command as an item of a list, such as "
                "entrypoint=['echo', xcom], or order the two tasks with >>."
            )
