"""Tasks that do nothing: the cost of Airflow itself, without and with a deferral."""

from __future__ import annotations

import pendulum
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import DAG, BaseOperator, Context


class StartAndEnd(BaseOperator):
    """Starts and ends."""

    def execute(self, context: Context) -> None:
        """Nothing."""


class DeferOnce(BaseOperator):
    """Waits in the triggerer for a moment that has passed."""

    def execute(self, context: Context) -> None:
        """Defer."""
        self.defer(trigger=DateTimeTrigger(moment=pendulum.now("UTC")), method_name="execute_complete")

    def execute_complete(self, context: Context, event: object = None) -> None:
        """Nothing."""


with DAG("plain", schedule=None, start_date=pendulum.datetime(2026, 1, 1)):
    StartAndEnd(task_id="job")

with DAG("plain_deferred", schedule=None, start_date=pendulum.datetime(2026, 1, 1)):
    DeferOnce(task_id="job")
