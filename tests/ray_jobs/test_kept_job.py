"""Contents of a job backup, and the submission ID of the restored job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tradewind.ray_jobs.gcs_reader import info_in
from tradewind.ray_jobs.job_backup import LABEL_SELECTOR, SavedJob, jobs_to_back_up, restored_id

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


def test_restored_job_keeps_submission_under_fixed_id() -> None:
    job = SavedJob.from_json(json.loads(json.dumps(SavedJob.from_info("train", INFO).to_json())))
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
    job = SavedJob.from_info("train", {**INFO, "metadata": metadata})
    assert job.submission("a")["entrypoint_label_selector"] == {"ray.io/tpu-pod-type": "v4-8"}


def test_packages_found_in_environment_except_variables() -> None:
    env = {**ENV, "py_modules": ["gcs://b.whl", "s3://elsewhere.zip", "gcs://_ray_pkg_a.zip"]}
    assert SavedJob.from_info("j", {**INFO, "runtime_env_json": json.dumps(env)}).packages == [
        "gcs://_ray_pkg_a.zip",
        "gcs://b.whl",
    ]
    assert SavedJob.from_info("j", {**INFO, "runtime_env_json": None}).packages == []


def test_no_two_jobs_come_back_under_one_id() -> None:
    jobs = ["a", "a-r-1", "a-r-2", "a-r-20261124", "a-r-0123abcd", "a-r-0123abcd-r-77"]
    assert [restored_id(job, "77") for job in jobs] == [f"{job}-r-77" for job in jobs]


def test_managed_and_ended_jobs_not_backed_up() -> None:
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
    kept, skipped = jobs_to_back_up(infos)
    assert [job.job for job in kept] == ["bare", "mine", "of-nobody", "waiting"] and not skipped


def nested(depth: int) -> dict[str, Any]:
    """Return an environment with values nested to this depth."""
    value: Any = "it"
    for _ in range(depth):
        value = [value]
    return {"config": value}


ODD: dict[str, Any] = {
    "no info": None,
    "a list": [INFO],
    "no status": {**INFO, "status": None},
    "metadata a list": {**INFO, "metadata": ["user"]},
    "metadata no texts": {**INFO, "metadata": {"user": 7}},
    "environment cut": {**INFO, "runtime_env_json": '{"pip": ['},
    "environment a list": {**INFO, "runtime_env_json": "[1]"},
    "environment no text": {**INFO, "runtime_env_json": 7},
    "environment deep": {**INFO, "runtime_env_json": "[" * 200_000},
    "environment rather deep": {**INFO, "runtime_env_json": json.dumps(nested(300))},
    "no entrypoint": {**INFO, "entrypoint": None},
    "resources a list": {**INFO, "entrypoint_resources": ["big"]},
    "resources no amounts": {**INFO, "entrypoint_resources": {"big": "0.5"}},
    "no cpus": {**INFO, "entrypoint_num_cpus": "2"},
    "below nothing": {**INFO, "entrypoint_memory": -1},
    "no number": {**INFO, "entrypoint_num_gpus": float("nan")},
    "a package elsewhere": {**INFO, "runtime_env_json": json.dumps({"working_dir": "gcs://../a.zip"})},
    "a package of no name": {**INFO, "runtime_env_json": json.dumps({"py_modules": ["gcs://.."]})},
    "a package with a long name": {**INFO, "runtime_env_json": json.dumps({"working_dir": f"gcs://{'a' * 256}"})},
    "a package with half a letter": {**INFO, "runtime_env_json": json.dumps({"working_dir": "gcs://\ud800"})},
    "an id without end" + "a" * 500: INFO,
    "an id with\nlines": INFO,
    "": INFO,
}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ascii(odd[:30]))
def test_invalid_job_reported_as_skipped_and_others_backed_up(odd: str) -> None:
    kept, [skipped] = jobs_to_back_up({"a": INFO, odd: ODD[odd], "z": INFO})
    assert [job.job for job in kept] == ["a", "z"] and skipped.job == odd
    assert (
        skipped.sentence.startswith("Job ")
        and "is not backed up and will not be restored, because " in skipped.sentence
    )
    assert len(skipped.sentence) < 1000 and skipped.sentence.isprintable() and "hidden" not in skipped.sentence
    assert json.loads(json.dumps([job.to_json() for job in kept]))


def test_what_is_merely_unusual_is_kept() -> None:
    env = {**nested(50), "py_modules": ["gcs://torch-2.1+cpu-py3-none-any.whl"]}
    info = {**INFO, "runtime_env_json": json.dumps(env), "entrypoint": "", "entrypoint_num_cpus": 0.5}
    kept, skipped = jobs_to_back_up({"ein Versuch": info, "a" * 500: info})
    assert len(kept) == 2 and not skipped and kept[0].runtime_env == env


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 200_000], ids=len)
def test_unreadable_head_job_info_yields_none(text: bytes) -> None:
    assert info_in(text) is None
