"""Clearing a finished plain Ray job submits a new one, also after a change to fewer retries."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from airflow.sdk import DAG

from tests.operators.contexts import context_of
from tests.operators.loopback_head import ImpatientHead
from tradewind.operators.ray_job import RayJobOperator


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImpatientHead]:
    server = ImpatientHead(0)
    server.start()
    monkeypatch.setenv("AIRFLOW_CONN_HEAD", json.dumps({"conn_type": "ray", "host": server.url}))
    yield server
    server.stop()


def test_clear_with_same_max_tries_makes_new_job_but_crash_not(head: ImpatientHead) -> None:
    with DAG("cleared") as dag:
        task = RayJobOperator(task_id="t", entrypoint="true", ray_conn_id="head", deferrable=False)
    context = context_of(dag)
    first = task.execute(context)
    assert task.execute(context) == first, "a worker that died before its task had ended"
    context["dag_run"].clear_number = 1  # with fewer retries, ``max_tries`` can keep its value
    again = task.execute(context)
    assert [first, again] == list(head.jobs) and first != again
