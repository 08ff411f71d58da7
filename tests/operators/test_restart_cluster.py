"""The operators that restart a cluster, and their DAG as Airflow loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError

from tests.fleet.fleets import write_fleet
from tradewind.operators.restart_cluster import RayClusterPeopleOperator, RayClusterRestartOperator, others_jobs
from tradewind.ray_jobs.details import JobDetails
from tradewind.tasks.errors import BadInputError

DAGS = Path(__file__).parents[2] / "dags"


def job(name: str, status: str = "RUNNING", **metadata: str) -> JobDetails:
    return JobDetails(name, status, metadata=metadata)


def test_restart_dag_requires_approval_cluster_and_reason() -> None:
    bag = DagBag(DAGS / "cluster_restart.py")
    assert bag.import_errors == {}
    dag = bag.dags["cluster_restart"]
    assert dag.task_dict["restart"].upstream_task_ids == {"approve", "who_is_asked"}
    with pytest.raises(ParamValidationError):
        dag.params.validate()
    dag.params.update({"cluster": "here", "reason": "its head is out of memory"})
    assert dag.params.validate() == {
        "cluster": "here", "preserve": True, "abandon_kept_jobs": False, "reason": "its head is out of memory",
    }  # fmt: skip
    restart = dag.task_dict["restart"]
    rendered = {name: getattr(restart, name) for name in restart.template_fields}
    assert rendered["abandon_kept_jobs"] == "{{ params.abandon_kept_jobs }}"


def test_approval_covers_only_unfinished_jobs_of_other_users() -> None:
    jobs = [job("hers", user="ada"), job("over", "SUCCEEDED", user="ada"), job("mine", user="bob"), job("anonymous")]
    assert [other.job for other in others_jobs(jobs, "bob")] == ["hers", "anonymous"]
    assert [other.job for other in others_jobs(jobs, None)] == ["hers", "mine", "anonymous"]


@pytest.mark.parametrize("operator", [RayClusterPeopleOperator, RayClusterRestartOperator])
def test_unknown_cluster_error_suggests_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: Any
) -> None:
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path)))
    with pytest.raises(BadInputError, match="Task 'it': .* no cluster 'her': did you mean here"):
        operator(task_id="it", cluster="her").execute({})


@pytest.mark.parametrize("field", ["preserve_jobs", "abandon_kept_jobs"])
def test_rendered_choice_must_be_true_or_false(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path)))
    with pytest.raises(BadInputError, match=f"Task 'it': {field} is 'perhaps', neither true nor false"):
        RayClusterRestartOperator(task_id="it", cluster="here", **{field: "perhaps"}).execute({})
