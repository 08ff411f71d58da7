"""Run code in a process with an Airflow database of its own, without a scheduler or an API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SETUP = """
import json, sys
import pendulum
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select, update

initdb()
with create_session() as session:
    session.add(DagBundleModel(name="here"))
bag = DagBag(sys.argv[1], bundle_path=sys.argv[1], bundle_name="here")
sync_bag_to_db(bag, "here", None)
with create_session() as session:
    session.execute(update(DagModel).values(is_paused=False))

def create_run(dag_id, run_id, session):
    return DBDagBag().get_latest_version_of_dag(dag_id, session=session).create_dagrun(
        run_id=run_id, run_after=pendulum.now(), run_type=DagRunType.MANUAL, session=session,
        triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.RUNNING,
    )

def report(value):
    print("RESULT" + json.dumps(value))
"""


def run_in_airflow(folder: Path, dags: str, code: str, *arguments: str) -> Any:
    """Run ``code`` after ``SETUP`` with the DAG file ``dags``, and return what it passes to ``report``."""
    (folder / "dags").mkdir()
    (folder / "dags" / "made.py").write_text(dags)
    env = dict(os.environ, AIRFLOW_HOME=str(folder), AIRFLOW__CORE__LOAD_EXAMPLES="False")
    command = [sys.executable, "-c", SETUP + code, str(folder / "dags"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert result, done.stdout + done.stderr
    return json.loads(result[0].removeprefix("RESULT"))
