"""What is kept of a job, and under which id it comes back."""

from __future__ import annotations

import json
from typing import Any

from tradewind.ray_jobs.keeping.kept_job import LABEL_SELECTOR, KeptJob, jobs_to_keep, returned_id

ENV: dict[str, Any] = {
    "working_dir": "gcs://_ray_pkg_a.zip",
    "env_vars": {"KEY": "hidden", "URL": "gcs://no.zip"},
}
INFO: dict[str, Any] = {
    "status": "RUNNING",
    "entrypoint": "python train.py",
    "runtime_env_json": json.dumps(ENV),
    "metadata": {"user": "ada"},
    "entrypoint_num_cpus": 2,
    "entrypoint_num_gpus": None,
    "entrypoint_memory": 5,
    "entrypoint_resources": {"big": 0.5},
}
TASK = {"airflow_task": "t", "airflow_waits": "yes"}


def test_a_job_comes_back_as_it_was_submitted_under_an_id_that_the_restart_fixes() -> None:
    job = KeptJob.from_json(json.loads(json.dumps(KeptJob.from_info("train", INFO).to_json())))
    assert job.submission("abc123") == {
        "submission_id": "train-r-abc123",
        "entrypoint": "python train.py",
        "runtime_env": ENV,
        "metadata": {"user": "ada"},
        "entrypoint_num_cpus": 2,
        "entrypoint_num_gpus": None,
        "entrypoint_memory": 5,
        "entrypoint_resources": {"big": 0.5},
        "entrypoint_label_selector": None,
    }
    assert "hidden" not in repr(job)


def test_labels_that_ray_does_not_tell_come_from_the_metadata() -> None:
    metadata = {LABEL_SELECTOR: json.dumps({"ray.io/tpu-pod-type": "v4-8"})}
    job = KeptJob.from_info("train", {**INFO, "metadata": metadata})
    assert job.submission("a")["entrypoint_label_selector"] == {"ray.io/tpu-pod-type": "v4-8"}


def test_packages_are_found_wherever_an_environment_names_them_but_in_variables() -> None:
    env = {**ENV, "py_modules": ["gcs://b.whl", "s3://elsewhere.zip", "gcs://_ray_pkg_a.zip"]}
    assert KeptJob.from_info("j", {**INFO, "runtime_env_json": json.dumps(env)}).packages == [
        "gcs://_ray_pkg_a.zip",
        "gcs://b.whl",
    ]
    assert KeptJob.from_info("j", {**INFO, "runtime_env_json": None}).packages == []


def test_no_two_jobs_come_back_under_one_id() -> None:
    jobs = ["a", "a-r-1", "a-r-2", "a-r-20261124", "a-r-0123abcd", "a-r-0123abcd-r-77"]
    assert [returned_id(job, "77") for job in jobs] == [f"{job}-r-77" for job in jobs]


def test_jobs_of_tasks_and_leases_and_those_that_have_ended_are_not_kept() -> None:
    infos = {
        "mine": INFO,
        "waiting": {**INFO, "status": "PENDING"},
        "done": {**INFO, "status": "SUCCEEDED"},
        "failed": {**INFO, "status": "FAILED"},
        "of-a-task": {**INFO, "metadata": TASK},
        "of-a-step": {**INFO, "metadata": {"step": "s", "output_path": "gs://b/s"}},
        "of-nobody": {**INFO, "metadata": {**TASK, "airflow_waits": "no"}},
        "bare": {**INFO, "metadata": None},
    }
    assert [job.job for job in jobs_to_keep(infos)] == ["bare", "mine", "of-nobody", "waiting"]
