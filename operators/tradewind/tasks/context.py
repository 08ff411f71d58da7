"""Values that a task reads from Airflow's context: the run's values, its prefix, its cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
    ExperimentError,
    ResolvedExperiment,
    RunValues,
    check_bounded,
    coerce_param,
    resolve,
    truncated_repr,
)
from tradewind.steps.amounts import check_amount
from tradewind.steps.paths import HUB_PREFIX
from tradewind.storage import Roots
from tradewind.tasks.params import PREFIX, is_builtin_param, param_name
from tradewind.tasks.plan_wait import planned_values

if TYPE_CHECKING:
    from airflow.sdk import DAG

PLAN_TASK_ID: Final = "plan"
OUTPUTS_TASK_ID: Final = "outputs"
"""First and last task of a group; a DAG that is one experiment has only the first."""

DAG_TAG: Final = "tradewind"
"""Of DAGs with steps: Airflow 3.4 shows the tabs Plan and Step in these only."""

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
        group: The ID of the task group in the user's own DAG; empty in a DAG that is one experiment.
        value_names: Names of the group's values, which its plan reads from the tasks above it.
    """

    prefix: str | None = None
    cluster: str | None = None
    timezone: str = "UTC"
    default_param: str | None = None
    clusters: tuple[str, ...] = ()
    allow_outside: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    has_own_prefix: bool = True
    group: str = ""
    value_names: tuple[str, ...] = ()

    def full_id(self, task_id: str) -> str:
        """Return the ID in the DAG of a task of this experiment."""
        return f"{self.group}.{task_id}" if self.group else task_id

    @property
    def outputs_task_ids(self) -> list[str]:
        """The task that hands the output paths of the group on; none in a DAG that is one experiment."""
        return [self.full_id(OUTPUTS_TASK_ID)] if self.group else []

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
        param = param_name(self.group, PREFIX)
        chosen = choose_prefix(
            self.prefix,
            values.params.get(param),
            os.environ,
            conf.get("tradewind", "prefix", fallback=None),
            lambda: RayHook(self.cluster_of(None)).bucket(),
            param,
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
        for step in experiment.steps:
            for place, path in step.run_paths:  # from the trigger form, whose users may not write the DAG file
                if not path.startswith(HUB_PREFIX):
                    self._all_roots().also((experiment.prefix,)).check(path, f"Step {step.name!r}: config.{place}")
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

    def values_of(self, context: Context, given: Mapping[str, Any] | None = None) -> RunValues:
        """Return the values of the task's DAG run; ``given`` are those of the group, if not those of its plan.

        Raises:
            AirflowSkipException, AirflowRescheduleException, PlanOutdatedError: The group has no plan, or not yet.
        """
        run: Any = context["dag_run"]
        interval = run.data_interval_start, run.data_interval_end
        if given is None:
            given = planned_values(context, self.full_id(PLAN_TASK_ID)) if self.group else {}
        return self.values_for(context["dag"], context["params"], run.partition_key, interval, run.run_after, given)

    def values_for(
        self,
        dag: DAG,
        params: Mapping[str, Any],
        partition_key: str | None,
        interval: tuple[Any, Any],
        run_after: Any,
        given: Mapping[str, Any] | None = None,
    ) -> RunValues:
        """Return the values of a run of ``dag``, due at ``run_after``, with or without a data interval.

        Its night is the date on which the interval starts; without an interval, that of the last midnight. An empty
        interval is none: Airflow gives one to a manual run on the day on which the clocks skip its schedule's hour.

        Raises:
            ExperimentError: One of the group's values is not ``given``.
        """
        given = given or {}
        if missing := [name for name in self.value_names if name not in given]:
            raise ExperimentError(
                f"Group {self.group!r}: a run's tasks give it {', '.join(map(repr, missing))}, so its steps have no "
                "versions without a run."
            )
        start, end = interval if interval[0] != interval[1] else (None, None)
        moment = pendulum.instance(start or run_after).in_timezone(self.timezone)
        return RunValues(
            params=_params(dag, params, param_name(self.group, PREFIX)) | dict(given),
            night=moment.date() if start else moment.subtract(days=1).date(),
            partition_key=partition_key,
            data_interval_start=_iso(start),
            data_interval_end=_iso(end),
        )


def _params(dag: DAG, given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the run's params, coerced to their schemas, so that ``1`` and ``1.0`` from JSON make one version.

    Tradewind's own are not among them, but the param of the prefix, which an author may declare too.
    """
    declared = dag.params
    params = {}
    for name, value in given.items():
        if name == prefix and name not in declared:
            logger.warning("DAG %r declares no param %r, so the one in the run's conf is ignored.", dag.dag_id, name)
            continue
        param = declared.get_param(name) if name in declared else None
        if param is not None and is_builtin_param(param) and (name != prefix or value is None):
            continue  # None: an empty field of the trigger form
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
