"""Links from a task to Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink
from airflow.sdk.execution_time.xcom import XCom

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class RayJobLink(BaseOperatorLink):
    """The job's page on the Ray dashboard; pushed as soon as the job is submitted, so it is there while it runs."""

    name = "Ray job"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The link that the task pushed."""
        return str(XCom.get_value(key=self.xcom_key, ti_key=ti_key) or "")
