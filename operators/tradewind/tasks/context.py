"""Values that a task reads from Airflow's context: the run's values, its prefix, its cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.sdk import Context, conf

from tradewind.deployment.fleet import deployment_roots
from tradewind.deployment.ray_connection import RayHook
from tradewind.plans.output_locations import check_output_places
from tradewind.plans.prefixes import choose_cluster, choose_prefix
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.records.lease import HEARTBEAT_S
from tradewind.steps import (
    ExecutorStep,
    ResolvedExperiment,
    RunValues,
    check_bounded,
    coerce_param,
    resolve,
    truncated_repr,
)
from tradewind.steps.amounts import check_amount
from tradewind.storage import Roots
from tradewind.tasks.params import PREFIX, is_builtin_param, without_run_params

if TYPE_CHECKING:
    from airflow.sdk import DAG

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlacedExperiment:
    """The steps of a run, and the roots of all that they make and read."""

    experiment: ResolvedExperiment
    roots: Roots


@dataclass(frozen=True)
class ExperimentSettings:
    """Settings that all tasks of one experiment share: arguments of ``experiment_dag`` used at run time.

    Attributes:
        prefix: The prefix, unless the run or the deployment gives it.
        cluster: The cluster of steps that do not name one.
        default_param: The author's default of the DAG param ``prefix``.
        clusters: Other clusters that the DAG names; the buckets of all are roots, unless the deployment names roots.
        allow_outside: Names of steps whose outputs may be anywhere, and paths below which any output may be.
        roots: Further roots that the user of the command line allows.
        has_own_prefix: The author wrote ``prefix``; otherwise it came with the run and must be below a root.
    """

    prefix: str | None = None
    cluster: str | None = None
    timezone: str = "UTC"
    default_param: str | None = None
    clusters: tuple[str, ...] = ()
    allow_outside: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    has_own_prefix: bool = True

    def cluster_of(self, step: ExecutorStep | None) -> str:
        """Return the cluster that ``step`` runs on."""
        return choose_cluster(step, self.cluster, conf.get("tradewind", "default_cluster", fallback="ray_default"))

    def prefix_of(self, values: RunValues) -> str:
        """Return the prefix of a run.

        Raises:
            MissingPrefixError: No source gives one.
            RelativePrefixError: It is relative: its meaning depends on the process.
            OutsideRootsError: It is below no root.
        """
        chosen = choose_prefix(
            self.prefix,
            values.params.get("prefix"),
            os.environ,
            conf.get("tradewind", "prefix", fallback=None),
            lambda: RayHook(self.cluster_of(None)).bucket(),
        )
        if not deployment_roots().allow(chosen.path):
            self._all_roots().check(chosen.path, chosen.source)
        return chosen.path

    def resolve(self, steps: Sequence[ExecutorStep], values: RunValues) -> PlacedExperiment:
        """Resolve the steps of a run, each with an output path where it may write.

        Raises:
            ExperimentError: They are not a valid experiment, or a step has no such path.
            OutsideRootsError: The prefix is below no root.
        """
        experiment = resolve(steps, self.prefix_of(values), values)
        roots = check_output_places(experiment.steps, experiment.prefix, self._all_roots, self.allow_outside)
        return PlacedExperiment(experiment, roots)

    def _all_roots(self) -> Roots:
        """Return the roots of the deployment and the command line; if the deployment names none, also the author's.

        A missing or broken connection contributes no bucket: a task that needs it reports the error.
        """
        roots = deployment_roots().also(self.roots)
        if conf.get("tradewind", "allowed_roots", fallback=None):
            return roots
        of_author = [self.prefix if self.has_own_prefix else None, self.default_param]
        for cluster in dict.fromkeys((self.cluster_of(None), *self.clusters)):
            with suppress(RayJobsError):
                of_author.append(RayHook(cluster).bucket())
        return roots.also(path for path in of_author if path and Roots((path,)).allow(path))

    def values_of(self, context: Context) -> RunValues:
        """Return the values of the task's DAG run."""
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
        """Return the values of a run of ``dag``, due at ``run_after``, with or without a data interval.

        Its night is the date on which the interval starts; without an interval, that of the last midnight. An empty
        interval is none: Airflow gives one to a manual run on the day on which the clocks skip its schedule's hour.
        """
        start, end = interval if interval[0] != interval[1] else (None, None)
        moment = pendulum.instance(start or run_after).in_timezone(self.timezone)
        return RunValues(
            params=_params(dag, without_run_params(params)),
            night=moment.date() if start else moment.subtract(days=1).date(),
            partition_key=partition_key,
            data_interval_start=_iso(start),
            data_interval_end=_iso(end),
        )


def _params(dag: DAG, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run's params, coerced to their schemas, so that ``1`` and ``1.0`` from JSON make one version."""
    declared = dag.params
    params = {}
    for name, value in given.items():
        if name == PREFIX and name not in declared:
            logger.warning("DAG %r declares no param 'prefix', so the prefix in the run's conf is ignored.", dag.dag_id)
            continue
        if name == PREFIX and value is None and is_builtin_param(declared.get_param(name)):
            continue  # an empty field of the trigger form
        param = declared.get_param(name) if name in declared else None
        check_bounded(value, f"param {truncated_repr(name)}", is_json=True)
        schema, default = (param.schema, param.value) if param is not None else (None, None)
        params[name] = coerce_param(value, schema, default)
    return params


def _iso(moment: Any) -> str | None:
    return pendulum.instance(moment).in_timezone("UTC").isoformat() if moment else None


def heartbeat_s() -> float:
    """Return the heartbeat interval of this deployment's lease owners.

    Raises:
        ValueError: The configured value is not a finite number of at least 0.1 s.
    """
    seconds: float = conf.getfloat("tradewind", "lease_heartbeat_seconds", fallback=HEARTBEAT_S)
    check_amount(seconds, "[tradewind] lease_heartbeat_seconds", minimum=0.1)
    return seconds
