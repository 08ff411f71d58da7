"""What a task reads out of Airflow's context: the run's values, its prefix, its cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.sdk import Context, conf

from tradewind.hooks.ray import RayHook
from tradewind.operators.run_params import without_run_params
from tradewind.plans.places import choose_cluster, choose_prefix
from tradewind.records.leases import HEARTBEAT_S
from tradewind.steps import ExecutorStep, RunValues, coerce_param

if TYPE_CHECKING:
    from airflow.sdk import DAG


@dataclass(frozen=True)
class ExperimentSettings:
    """What all tasks of one experiment share: the arguments of ``experiment_dag`` that matter at run time."""

    prefix: str | None = None
    cluster: str | None = None
    timezone: str = "UTC"

    def cluster_of(self, step: ExecutorStep | None) -> str:
        """The cluster that ``step`` runs on."""
        return choose_cluster(step, self.cluster, conf.get("tradewind", "default_cluster", fallback="ray_default"))

    def prefix_of(self, values: RunValues) -> str:
        """The prefix of a run.

        Raises:
            MissingPrefixError: Nothing gives one.
        """
        return choose_prefix(
            self.prefix,
            values.params.get("prefix"),
            os.environ,
            conf.get("tradewind", "prefix", fallback=None),
            lambda: RayHook(self.cluster_of(None)).bucket(),
        )

    def values_of(self, context: Context) -> RunValues:
        """The run values of the task's DAG run."""
        run: Any = context["dag_run"]
        interval = run.data_interval_start, run.data_interval_end
        return self.values_for(context["dag"], context["params"], run.partition_key, interval, run.run_after)

    def values_for(
        self,
        dag: DAG,
        params: Mapping[str, Any],
        partition_key: str | None,
        interval: tuple[Any, Any],
        run_after: Any,
    ) -> RunValues:
        """The values of a run of ``dag`` with these params, due at ``run_after``, in this data interval or in none."""
        start, end = interval
        return RunValues(
            params=_params(dag, without_run_params(params)),
            night=_night(start, run_after, self.timezone),
            partition_key=partition_key,
            data_interval_start=_iso(start),
            data_interval_end=_iso(end),
        )


def _params(dag: DAG, given: Mapping[str, Any]) -> dict[str, Any]:
    """The run's params, coerced to their schemas, so that ``1`` and ``1.0`` from JSON make one version."""
    declared = dag.params
    params = {}
    for name, value in given.items():
        param = declared.get_param(name) if name in declared else None
        params[name] = coerce_param(value, param.schema.get("type"), param.value) if param is not None else value
    return params


def _night(interval_start: Any, run_after: Any, timezone: str) -> Any:
    """The date on which the data interval starts; without an interval, that of the last midnight's."""
    moment = pendulum.instance(interval_start or run_after).in_timezone(timezone)
    return moment.date() if interval_start else moment.subtract(days=1).date()


def _iso(moment: Any) -> str | None:
    return pendulum.instance(moment).in_timezone("UTC").isoformat() if moment else None


def heartbeat_s() -> float:
    """How often owners of this deployment renew their leases."""
    return conf.getfloat("tradewind", "lease_heartbeat_seconds", fallback=HEARTBEAT_S)
