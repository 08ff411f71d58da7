"""Wait for a Ray job that another task, another DAG or a user submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowSkipException

from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind, classify
from tradewind.ray_jobs.job_query import JobQuery
from tradewind.tasks.errors import failing_without_retry, translated_cluster_errors
from tradewind.tasks.jobs.errors import job_error
from tradewind.tasks.xcom_texts import check_xcom_texts
from tradewind.triggers.in_line import waits_in_line
from tradewind.triggers.ray_job_sensor import RayJobSensorTrigger


class RayJobSensor(BaseSensorOperator):
    """Succeeds when a Ray job has succeeded, and fails when it has ended in any other way.

    It also waits for a job that does not exist yet. XCom: the job's submission ID.

    Args:
        submission_id: The job's submission ID.
        metadata: Instead of the ID: the newest job that has all of these metadata.
        ray_conn_id: Connection of the cluster.
        deferrable: Wait in the triggerer, which needs no worker slot.
    """

    ui_color = "#d7e3fc"
    template_fields: Sequence[str] = ("submission_id", "metadata", "ray_conn_id")

    def __init__(
        self,
        *,
        submission_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        ray_conn_id: str = RayHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.submission_id = submission_id
        self.metadata = metadata
        self.ray_conn_id = ray_conn_id
        self.deferrable = deferrable

    def prepare_template(self) -> None:
        """Refuse texts that need another task's XCom without waiting for it."""
        check_xcom_texts(self)

    def execute(self, context: Context) -> Any:
        """Wait for the job, in the triggerer or here."""
        with failing_without_retry():
            query = self._query()
        if not (self.deferrable or waits_in_line()):
            return super().execute(context)
        self.defer(
            trigger=RayJobSensorTrigger(self.ray_conn_id, query.submission_id, dict(query.metadata or {}) or None),
            method_name=self.execute_complete.__name__,
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Return the job's ID if it succeeded.

        Raises:
            RayJobError: It ended in another way.
        """
        return self._judge(event["job"], Ending.from_json(event["ending"]))

    def poke(self, context: Context) -> PokeReturnValue:
        """Whether the job has succeeded."""
        with translated_cluster_errors(f"Task {self.task_id!r}"):
            found = self._query().matching(RayHook(self.ray_conn_id).get_conn().jobs())
        if not found or not found[0].has_ended:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._judge(found[0].job, classify(found[0].job, found[0])))

    def _query(self) -> JobQuery:
        return JobQuery(self.submission_id or None, self.metadata or None)

    def _judge(self, job: str, ending: Ending) -> str:
        if ending.kind is EndingKind.SUCCEEDED:
            self.log.info("%s", ending.sentence)
            return job
        if self.soft_fail:
            raise AirflowSkipException(ending.sentence)
        raise job_error(ending, at_once=True)
