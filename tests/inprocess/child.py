"""Run the DAGs of one bundle with ``dag.test()``: one JSON request per stdin line, answers on stdout.

``python -m tests.inprocess.child LOG_FILE``. Airflow, the operators and the tasks write to the log file.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from functools import partialmethod
from typing import Any, Final
from unittest.mock import patch

import airflow.settings
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.models import import_all_models
from airflow.models.asset import AssetDagRunQueue, AssetEvent, AssetModel
from airflow.models.base import Base
from airflow.models.connection import Connection
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.utils.db import synchronize_log_template
from airflow.utils.session import create_session
from sqlalchemy import select


def make_database() -> None:
    airflow.settings.initialize()
    import_all_models()
    Base.metadata.create_all(airflow.settings.engine)
    synchronize_log_template()


def run(dag_id: str, conf: dict[str, Any], partition_key: str | None) -> dict[str, Any]:
    """Run the DAG once, read from its file again, since ``dag.test()`` leaves a run's params in the DAG."""
    [bundle] = DagBundlesManager().get_all_dag_bundles()
    bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    assert not bag.import_errors, bag.import_errors
    dag = bag.dags[dag_id]
    if partition_key is None:
        return summary(dag.test(run_conf=conf))
    # ``dag.test()`` has no argument for the partition key, so the run's constructor gets it here.
    keyed = partialmethod(SerializedDAG.create_dagrun, partition_key=partition_key)
    with patch.object(SerializedDAG, "create_dagrun", keyed):
        return summary(dag.test(run_conf=conf, logical_date=None))


def run_interrupted(dag_id: str) -> str:
    """Run the DAG until a signal ends the run; return the exception that would end the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell has none
    try:
        return str(run(dag_id, {}, None))
    except (KeyboardInterrupt, SystemExit) as end:
        return repr(end)


def run_script(file: str) -> dict[str, Any]:
    """Run a DAG file as a script, which assigns its run to ``run``."""
    return summary(runpy.run_path(file, run_name="__main__")["run"])


def summary(run: DagRun) -> dict[str, Any]:
    """Return the states, tries and results of a finished run."""
    results = select(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id, key="return_value")
    with create_session() as session:
        tasks = run.get_task_instances(session=session)
        return {
            "state": run.state,
            "logical_date": run.logical_date and run.logical_date.isoformat(),
            "partition_key": run.partition_key,
            "states": {task.task_id: task.state for task in tasks},
            "tries": {task.task_id: task.try_number for task in tasks},
            "results": {xcom.task_id: XComModel.deserialize_value(xcom) for xcom in session.scalars(results)},
        }


def asset_events(name: str) -> list[dict[str, Any]]:
    """Return the ``extra`` of the asset's events, oldest first."""
    query = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.name == name)
    with create_session() as session:
        return [dict(event.extra) for event in session.scalars(query.order_by(AssetEvent.id))]


def queued_assets(dag_id: str) -> list[str]:
    """Return the assets with events that the DAG's next run will consume."""
    query = select(AssetModel.name).join(AssetDagRunQueue).where(AssetDagRunQueue.target_dag_id == dag_id)
    with create_session() as session:
        return list(session.scalars(query))


def add_connection(conn_id: str, conn_type: str, host: str, extra: dict[str, Any]) -> None:
    """Add a connection to Airflow's database."""
    with create_session() as session:
        session.add(Connection(conn_id=conn_id, conn_type=conn_type, host=host, extra=json.dumps(extra)))


CALLS: Final[dict[str, Callable[..., Any]]] = {
    call.__name__: call for call in (run, run_interrupted, run_script, asset_events, queued_assets, add_connection)
}


def main(log_file: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    gc.freeze()
    make_database()
    for line in sys.stdin:
        request = json.loads(line)
        answer = CALLS[request["call"]](*request["arguments"])
        sys.stdout.flush()
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # Airflow's exit handlers take seconds and have nothing to clean up


if __name__ == "__main__":
    main(sys.argv[1])
