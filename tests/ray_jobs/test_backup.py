"""Job backups: unmanaged jobs as the head stores them, in a folder that only the owner can read."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tradewind.ray_jobs.details import is_managed, owner_of
from tradewind.ray_jobs.gcs_reader import info_in
from tradewind.ray_jobs.job_backup import (
    LABEL_SELECTOR,
    BadBackupError,
    JobBackup,
    SavedJob,
    backups_of,
    jobs_to_back_up,
    restored_id,
)

PACKAGE = "gcs://_ray_pkg_a.zip"
ENV: dict[str, Any] = {"working_dir": PACKAGE, "env_vars": {"KEY": "hidden", "URL": "gcs://no.zip"}}
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
TASK = {"airflow_dag": "daily", "airflow_run": "r1", "airflow_task": "train", "airflow_deployment": "staging"}
STEP = {"step": "train-abc", "output_path": "gs://b/train-abc"}


@pytest.mark.parametrize(
    ("metadata", "is_expected_managed", "owner"),
    [
        ({**TASK, "airflow_waits": "yes"}, True, "task train of run r1 of daily"),
        ({**TASK, "airflow_waits": "no"}, False, "task train of run r1 of daily"),
        (TASK, False, "task train of run r1 of daily"),
        (STEP, True, "step train-abc"),
        ({"step": "3"}, False, "-"),
        ({"user": "ada"}, False, "ada"),
        ({"owner": "bob", "user": ""}, False, "bob"),
        ({}, False, "-"),
    ],
)
def test_task_or_lease_jobs_managed_and_others_unmanaged(
    metadata: dict[str, str], is_expected_managed: bool, owner: str
) -> None:
    assert is_managed(metadata) is is_expected_managed
    assert owner_of(metadata) == owner


# ---- contents


@pytest.mark.parametrize("labels", [None, {"ray.io/tpu-pod-type": "v4-8"}])
def test_restored_job_keeps_submission_under_fixed_id(labels: dict[str, str] | None) -> None:
    """Ray does not report labels, so they come from the metadata."""
    metadata = {"user": "ada", **({LABEL_SELECTOR: json.dumps(labels)} if labels else {})}
    saved = SavedJob.from_info("train", {**INFO, "metadata": metadata})
    job = SavedJob.from_json(json.loads(json.dumps(saved.to_json())))
    assert job.submission("abc123") == {
        "submission_id": "train-r-abc123",
        "entrypoint": "python train.py",
        "runtime_env": ENV,
        "metadata": metadata,
        "entrypoint_num_cpus": 2,
        "entrypoint_num_gpus": None,
        "entrypoint_memory": 5,
        "entrypoint_resources": {"big": 0.5},
        "entrypoint_label_selector": labels,
    }
    assert "hidden" not in repr(job)


def test_packages_found_in_environment_except_variables() -> None:
    env = {**ENV, "py_modules": ["gcs://b.whl", "s3://elsewhere.zip", PACKAGE]}
    assert SavedJob.from_info("j", {**INFO, "runtime_env_json": json.dumps(env)}).packages == [PACKAGE, "gcs://b.whl"]
    assert SavedJob.from_info("j", {**INFO, "runtime_env_json": None}).packages == []


def test_restored_ids_are_unique_per_job() -> None:
    jobs = ["a", "a-r-1", "a-r-2", "a-r-20261124", "a-r-0123abcd", "a-r-0123abcd-r-77"]
    assert [restored_id(job, "77") for job in jobs] == [f"{job}-r-77" for job in jobs]


def test_managed_and_ended_jobs_not_backed_up() -> None:
    infos = {
        "user": INFO,
        "waiting": {**INFO, "status": "PENDING"},
        "done": {**INFO, "status": "SUCCEEDED"},
        "failed": {**INFO, "status": "FAILED"},
        "of-a-task": {**INFO, "metadata": {**TASK, "airflow_waits": "yes"}},
        "of-a-step": {**INFO, "metadata": STEP},
        "not-awaited": {**INFO, "metadata": {**TASK, "airflow_waits": "no"}},
        "bare": {**INFO, "metadata": None},
    }
    saved, skipped = jobs_to_back_up(infos)
    assert [job.job for job in saved] == ["bare", "not-awaited", "user", "waiting"] and not skipped


def nested(depth: int) -> dict[str, Any]:
    """Return an environment with values nested to this depth."""
    value: Any = "it"
    for _ in range(depth):
        value = [value]
    return {"config": value}


INVALID: dict[str, Any] = {
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
    "negative memory": {**INFO, "entrypoint_memory": -1},
    "no number": {**INFO, "entrypoint_num_gpus": float("nan")},
    "a package elsewhere": {**INFO, "runtime_env_json": json.dumps({"working_dir": "gcs://../a.zip"})},
    "a package without a name": {**INFO, "runtime_env_json": json.dumps({"py_modules": ["gcs://.."]})},
    "a package with a long name": {**INFO, "runtime_env_json": json.dumps({"working_dir": f"gcs://{'a' * 256}"})},
    "a package with a surrogate": {**INFO, "runtime_env_json": json.dumps({"working_dir": "gcs://\ud800"})},
    "a long id" + "a" * 500: INFO,
    "an id with\nlines": INFO,
    "": INFO,
}


@pytest.mark.parametrize("job", INVALID, ids=lambda job: ascii(job[:30]))
def test_invalid_job_reported_as_skipped_and_others_backed_up(job: str) -> None:
    saved, [skipped] = jobs_to_back_up({"a": INFO, job: INVALID[job], "z": INFO})
    assert [one.job for one in saved] == ["a", "z"] and skipped.job == job
    assert "' is not backed up and will not be restored, because " in skipped.sentence
    assert len(skipped.sentence) < 1000 and skipped.sentence.isprintable() and "hidden" not in skipped.sentence
    assert json.loads(json.dumps([one.to_json() for one in saved]))


def test_unusual_but_valid_jobs_are_backed_up() -> None:
    env = {**nested(50), "py_modules": ["gcs://torch-2.1+cpu-py3-none-any.whl"]}
    info = {**INFO, "runtime_env_json": json.dumps(env), "entrypoint": "", "entrypoint_num_cpus": 0.5}
    saved, skipped = jobs_to_back_up({"ein Versuch": info, "a" * 500: info})
    assert len(saved) == 2 and not skipped and saved[0].runtime_env == env


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 200_000], ids=len)
def test_unreadable_head_job_info_yields_none(text: bytes) -> None:
    assert info_in(text) is None


# ---- the folder


def job(name: str, status: str = "RUNNING") -> SavedJob:
    return SavedJob(name, status, "true", ENV)


@pytest.fixture
def backup(tmp_path: Path) -> JobBackup:
    """Write a backup of jobs ``a`` and ``b``."""
    package = tmp_path / "0"
    package.write_bytes(b"zip")
    written = JobBackup(tmp_path / "state" / "cluster" / "abc")
    written.add([job("a"), job("b")], {PACKAGE: package})
    return written


def test_backup_is_readable_by_its_owner_only(backup: JobBackup) -> None:
    backup.note_ending("a/../b")
    for path in (backup.folder, *backup.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert backup.package(PACKAGE).read_bytes() == b"zip"
    assert backup.jobs() == [job("a"), job("b")] and backup.restart == "abc"


def test_added_job_replaces_job_with_same_id(backup: JobBackup) -> None:
    backup.add([job("b", "PENDING"), job("c")], {})
    assert backup.jobs() == [job("a"), job("b", "PENDING"), job("c")]
    backup.add([], {}, without=["a", "x"])
    assert backup.jobs() == [job("b", "PENDING"), job("c")]


def test_incomplete_backup_does_not_exist(tmp_path: Path) -> None:
    backup = JobBackup(tmp_path / "abc")
    (backup.folder / "packages").mkdir(parents=True)
    (backup.folder / ".1.new").write_text("[")
    assert not backup.exists and backups_of(tmp_path) == []
    with pytest.raises(BadBackupError, match="There is no backup of jobs in"):
        backup.jobs()
    (backup.folder / "jobs.json").write_text("[")
    with pytest.raises(BadBackupError, match="it was changed"):
        backup.jobs()


def test_backup_shrinks_to_unrestored_jobs_and_then_vanishes(backup: JobBackup) -> None:
    backup.keep_only(["b"])
    assert backup.jobs() == [job("b")] and backups_of(backup.folder.parent) == [backup]
    backup.keep_only([])
    assert list(backup.folder.parent.iterdir()) == []
    backup.delete()


@pytest.mark.parametrize("uri", ["gcs://../../x", "gcs://", "gcs://a/b.zip"])
def test_package_path_outside_backup_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(BadBackupError, match="no package of Ray's"):
        JobBackup(tmp_path).package(uri)


def test_ending_is_noted_per_job_also_for_unusual_ids(backup: JobBackup) -> None:
    for name in ("a", "a" * 200, "../b", "\ud800"):
        assert not backup.has_noted_ending(name)
        backup.note_ending(name)
        assert backup.has_noted_ending(name)
