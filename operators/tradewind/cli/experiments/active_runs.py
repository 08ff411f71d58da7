"""The DAG runs that Airflow has queued or running, those of backfills too, with what their steps are resolved with.

They come from Airflow's database, which is only read.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tradewind.cli.errors import CommandError
from tradewind.steps import ExperimentError, RunValues

if TYPE_CHECKING:
    from tradewind.cli.experiments.load import Experiment


class UnreadableRunsError(CommandError):
    """It cannot be known which runs are active."""


@dataclass(frozen=True)
class ActiveRun:
    """A run that is queued or running.

    Attributes:
        given: The params that it was triggered with.
        bundle_version: The version of the DAG's code that it is bound to, if it is to one.
    """

    dag_id: str
    run_id: str
    given: Mapping[str, Any]
    partition_key: str | None
    data_interval: tuple[Any, Any]
    run_after: Any
    bundle_version: str | None

    def values(self, experiment: Experiment) -> RunValues:
        """The run values, as the run's own tasks have them.

        Raises:
            ExperimentError: The run is bound to other code than was read here.
            ParamValidationError: The DAG does not take its params any more.
        """
        if self.bundle_version is not None and self.bundle_version != experiment.bundle_version:
            raise ExperimentError(f"it runs the code of version {self.bundle_version}, which was not read.")
        from airflow.sdk import conf

        params = copy.deepcopy(experiment.dag.params)
        if conf.getboolean("core", "dag_run_conf_overrides_params"):
            params.update(self.given)
        settings = experiment.operator.settings
        return settings.values_for(
            experiment.dag, params.validate(), self.partition_key, self.data_interval, self.run_after
        )


def active_runs() -> list[ActiveRun]:
    """All queued and running DAG runs, of whichever DAGs, by one query.

    Raises:
        UnreadableRunsError: Airflow's database does not answer, or is none.
    """
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    columns = (
        DagRun.dag_id,
        DagRun.run_id,
        DagRun.conf,
        DagRun.partition_key,
        DagRun.data_interval_start,
        DagRun.data_interval_end,
        DagRun.run_after,
        DagRun.bundle_version,
    )
    active = select(*columns).where(DagRun.state.in_([DagRunState.QUEUED, DagRunState.RUNNING]))
    try:
        with create_session() as session:
            rows = session.execute(active).all()
    except SQLAlchemyError as error:
        why = str(error).splitlines()[0]
        raise UnreadableRunsError(f"Airflow's database does not say which runs are active: {why}") from error
    return [
        ActiveRun(dag_id, run_id, conf or {}, partition_key, (start, end), run_after, bundle_version)
        for dag_id, run_id, conf, partition_key, start, end, run_after, bundle_version in rows
    ]
