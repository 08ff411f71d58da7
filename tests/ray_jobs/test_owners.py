"""Owner of a job, from the metadata of its submission."""

from __future__ import annotations

import pytest

from tradewind.ray_jobs.details import is_managed, owner_of

TASK = {"airflow_dag": "night", "airflow_run": "r1", "airflow_task": "train", "airflow_deployment": "theirs"}
STEP = {"step": "train-abc", "output_path": "gs://b/train-abc"}


@pytest.mark.parametrize(
    ("metadata", "is_ours", "owner"),
    [
        ({**TASK, "airflow_waits": "yes"}, True, "task train of run r1 of night"),
        ({**TASK, "airflow_waits": "no"}, False, "task train of run r1 of night"),
        (TASK, False, "task train of run r1 of night"),
        (STEP, True, "step train-abc"),
        ({"step": "3"}, False, "-"),
        ({"user": "ada"}, False, "ada"),
        ({"owner": "bob", "user": ""}, False, "bob"),
        ({}, False, "-"),
    ],
)
def test_task_or_lease_jobs_managed_and_others_unmanaged(metadata: dict[str, str], is_ours: bool, owner: str) -> None:
    assert is_managed(metadata) is is_ours
    assert owner_of(metadata) == owner
