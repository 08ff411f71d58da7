"""Tasks that serve a model for others: what they refuse, what they hand on, and which pool they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowFailException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from tests.operators.contexts import context_of
from tests.operators.loopback_head import CallingHead
from tradewind.operators.ray_job import RayJobOperator
from tradewind.operators.serve_model import ServeModelOperator, StopModelOperator, served_model
from tradewind.ray_jobs.follow.outcomes import Ending, EndingKind
from tradewind.serving.config import ServingConfig
from tradewind.steps import Cpu
from tradewind.tasks.errors import BadInputError

NAME = "pool-0123456789ab"
POOL: dict[str, Any] = {
    "name": NAME,
    "address": "http://10.0.0.2:8001/v1",
    "model": "small",
    "state": "ready",
    "engines": [],
    "ends_at": 1e9,
    "started": True,
}


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CallingHead]:
    monkeypatch.setenv("AIRFLOW__TRADEWIND__ALLOWED_ROOTS", str(tmp_path))
    with CallingHead().connected(monkeypatch) as head:
        head.result = POOL
        yield head


def task_of(kind: type[RayJobOperator], **options: Any) -> tuple[Any, Any]:
    with DAG("d") as dag:
        task = kind(task_id="t", ray_conn_id="head", **{"deferrable": False, **options})
    return task, context_of(dag)


def test_pool_is_started_by_one_job_and_shown_without_a_token(head: CallingHead, tmp_path: Path) -> None:
    task, context = task_of(
        ServeModelOperator,
        model=str(tmp_path / "small"),
        runs_on=Cpu(2),
        replicas="2",
        max_replicas="",
        timeout=timedelta(minutes=30),
        secrets={"HF_TOKEN": "env:HF_TOKEN"},
    )
    served = task.execute(context)
    assert served == {"name": NAME, "address": POOL["address"], "model": "small", "started": True}
    [call] = head.calls
    assert call["function"]["reference"] == "tradewind.serving.start_pool:start"
    expected = ServingConfig(str(tmp_path / "small"), resources=Cpu(2), replicas=2, timeout_s=1800, idle_timeout_s=1800)
    assert ServingConfig.from_json(*call["args"]) == replace(expected, secrets={"HF_TOKEN": "env:HF_TOKEN"})


def test_cleared_task_knows_the_pool_that_it_has_started(head: CallingHead, tmp_path: Path) -> None:
    task, context = task_of(ServeModelOperator, model=str(tmp_path))
    started = []
    for was_started, ends_at in ((True, 1e9), (False, 1e9), (False, 2e9)):
        head.result = POOL | {"started": was_started, "ends_at": ends_at}
        context["dag_run"].clear_number += 1
        started.append(task.execute(context)["started"])
    assert started == [True, True, False], "the last one is another user's"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "/elsewhere"}, "Task 't': model: the path '/elsewhere' is below no allowed root"),
        ({"model": "trained"}, "'trained' is below no allowed root"),
        ({"model": None}, "Task 't': model: a path should be text, not NoneType"),
        ({"model": "hub:org/name@0123abc", "engine": "ollama"}, "engine='ollama': give one of levanter, vllm, command"),
        ({"model": "hub:org/name@0123abc", "replicas": "many"}, "replicas='many': give a whole number"),
        ({"model": "hub:org/name@0123abc", "max_replicas": "0"}, "max_replicas=0: give a whole number of at least 1"),
        ({"model": "hub:org/name@0123abc", "engine_options": {"max_seq": 9}}, "Task 't': .*max_seq"),
        ({"model": "hub:org/name@0123abc", "engine": "command"}, "where it takes its port"),
        ({"model": "hub:org/name@0123abc", "secrets": {"HF_TOKEN": "hf_x"}}, "no reference"),
    ],
)
def test_bad_field_fails_task_before_any_job(options: dict[str, Any], message: str, head: CallingHead) -> None:
    task, context = task_of(ServeModelOperator, **options)
    with pytest.raises(AirflowFailException, match=message.replace("(", r"\(")):
        task.execute(context)
    assert not head.jobs


@pytest.mark.parametrize(
    ("options", "message"),
    [({"timeout": -1}, "timeout is -1"), ({"timeout": None}, "timeout is None"), ({"idle_timeout": "2h"}, "'2h'")],
)
def test_bad_limit_fails_dag_file(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_of(ServeModelOperator, model="hub:a/b@0123abc", **options)


@pytest.mark.parametrize(
    ("served", "result", "calls"),
    [({"name": NAME, "started": True}, "in use", 1), ({"name": NAME, "started": False}, "not started here", 0)],
)
def test_only_own_pool_is_ended(served: Any, result: str, calls: int, head: CallingHead) -> None:
    head.result = {NAME: "in use"}
    task, context = task_of(StopModelOperator, served=served)
    assert task.execute(context) == result
    assert [(call["args"], call["kwargs"]) for call in head.calls] == [([[NAME]], {"only_unused": True})] * calls


def test_pool_of_no_task_is_refused(head: CallingHead) -> None:
    task, context = task_of(StopModelOperator, served=None)
    with pytest.raises(BadInputError, match="served is None: give a ServeModelOperator's output"):
        task.execute(context)


def test_tasks_in_the_block_are_between_setup_and_teardown() -> None:
    with DAG("d") as dag:
        training = RayJobOperator(task_id="train", entrypoint="train")
        with served_model("serve", model=training.output, ray_conn_id="head", deferrable=False, owner="ada") as served:
            asking = RayJobOperator(task_id="ask", entrypoint=["curl", served["address"]])
            EmptyOperator(task_id="other")
    serve, end = dag.get_task("serve"), dag.get_task("serve_end")
    assert serve.upstream_task_ids == {"train"}
    assert serve.is_setup and end.is_teardown and not end.on_failure_fail_dagrun
    assert asking.upstream_task_ids == {"serve"} and asking.downstream_task_ids == {"serve_end"}
    assert dag.get_task("other").upstream_task_ids == {"serve"}
    assert end.trigger_rule == "all_done_setup_success" and not end.deferrable
    assert serve.owner == end.owner == "ada"
    assert tuple(serve.template_fields) == ServeModelOperator.template_fields


def test_both_tasks_wait_in_the_triggerer(head: CallingHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, options, result in (
        (ServeModelOperator, {"model": str(tmp_path)}, POOL),
        (StopModelOperator, {"served": {"name": NAME, "started": True}}, {NAME: "stopped"}),
    ):
        task, context = task_of(kind, deferrable=True, **options)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(context)
        claim = deferred.value.trigger.serialize()[1]["payload"]["claim"]
        event = {
            "ending": Ending(EndingKind.SUCCEEDED, "It succeeded.").to_json(),
            "result": json.dumps(result),
            "claim": claim,
        }
        again, _ = task_of(kind, deferrable=True, **options)
        made = again.execute_complete(context, event)
        assert made == ("stopped" if kind is StopModelOperator else made) and "token" not in str(made)
