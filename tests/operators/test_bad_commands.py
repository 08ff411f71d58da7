"""A task refuses a command that no cluster accepts and fails before the submission."""

from __future__ import annotations

import json

import pytest
from airflow.exceptions import AirflowFailException
from airflow.sdk import DAG

from tests.operators.contexts import context_of
from tests.operators.loopback_head import LoopbackHead
from tradewind.operators.ray_job import RayJobOperator


@pytest.mark.parametrize(
    ("command", "words"), [("", "is empty"), ("echo hf_" + "a" * 34, "secret")], ids=["empty", "secret"]
)
def test_a_bad_command_submits_nothing(monkeypatch: pytest.MonkeyPatch, command: str, words: str) -> None:
    head = LoopbackHead()
    head.start()
    monkeypatch.setenv("AIRFLOW_CONN_HEAD", json.dumps({"conn_type": "ray", "host": head.url}))
    with DAG("bad") as dag:
        task = RayJobOperator(task_id="t", entrypoint=command, ray_conn_id="head", deferrable=False)
    try:
        with pytest.raises(AirflowFailException, match=words):
            task.execute(context_of(dag))
        assert head.jobs == {}
    finally:
        head.stop()
