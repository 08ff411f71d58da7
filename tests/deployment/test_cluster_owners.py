"""Tasks and the shell refuse a cluster to all but its owner in the fleet file, before they use it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from airflow.sdk import DAG

from tests.fleet.fleets import write_fleet
from tests.operators.contexts import context_of
from tradewind.deployment.fleet import NotTheOwnerError, check_cluster_access
from tradewind.operators.ray_job import RayJobOperator
from tradewind.tasks.errors import BadInputError


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = write_fleet(tmp_path, "owner: hero\nconnection: ray-here\n")
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    return file


@pytest.mark.parametrize("name", ["here", "ray-here"])
def test_cluster_accepts_only_its_owner_under_either_name(fleet: Path, name: str) -> None:
    for owner in ("hero", "ada, hero"):
        check_cluster_access(["elsewhere", name], owner, "Task 'it'")
    for owner in ("airflow", "her", ""):
        with pytest.raises(NotTheOwnerError, match="Task 'it': Cluster here takes only jobs of hero"):
            check_cluster_access(["elsewhere", name], owner, "Task 'it'")


def test_cluster_without_owner_or_fleet_file_accepts_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cluster_access(["here"], "airflow", "Task 'it'")
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path)))
    check_cluster_access(["here"], "airflow", "Task 'it'")


def test_invalid_fleet_file_warns_and_blocks_no_user(fleet: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleet.write_text("clusters: 3")
    with caplog.at_level(logging.WARNING):
        check_cluster_access(["here"], "airflow", "Task 'it'")
    assert "owners of clusters are not checked" in caplog.text


def test_operator_is_refused_before_any_request(fleet: Path) -> None:
    with DAG("d"):
        RayJobOperator(task_id="t", entrypoint="true", ray_conn_id="here", owner="ada")
        dag = RayJobOperator(task_id="u", entrypoint="true", ray_conn_id="here").dag
    with pytest.raises(BadInputError, match="Task 't': Cluster here takes only jobs of hero, .* this is ada's"):
        dag.get_task("t").execute(context_of(dag))
