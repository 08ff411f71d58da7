"""A slice belongs to a user only if the user's machine recorded that; claims of jobs give no access."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from tradewind.cloud_tpu.host_files import BadDevSliceError, DevHostInfo, DevSlice
from tradewind.fleet.access.hosts import ClusterHosts, FleetError, SliceHost
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.dev_sessions import LocalSessions, find_session, is_session_id, named_session
from tradewind.ray_jobs.details import JobDetails

MINE, HERS = "dev-tpu-ada-ada-20260301-091244-1f2e", "dev-tpu-ada-ada-20260301-101244-ffff"
SLICE = DevSlice("one", (DevHostInfo("10.0.0.1", "10.0.0.1/12/345"),))


class Hosts:
    """Slices of a cluster, by name."""

    def named(self, names: list[str]) -> list[SliceHost]:
        if names == ["one"]:
            return [SliceHost("one", 0, "10.0.0.1")]
        raise FleetError(f"no {names}")


HOSTS = cast(ClusterHosts, Hosts())


def holder(job: str, started: int = 1, status: str = "RUNNING") -> JobDetails:
    """Return a job that any user may submit."""
    return JobDetails(job, status, metadata={"dev_tpu": "ada", "user": "ada"}, started_ms=started)


@pytest.fixture
def own(cluster: FleetCluster, tmp_path: Path) -> LocalSessions:
    return LocalSessions(cluster, tmp_path / "state")


def test_session_allocated_here_is_found_despite_foreign_names(cluster: FleetCluster, own: LocalSessions) -> None:
    own.note(MINE, "ada", SLICE)
    jobs = [holder(MINE), holder(HERS, 2), holder("../../.ssh", 3)]
    session = find_session(cluster, jobs, HOSTS, own, name="ada", user="ada")
    assert (session.job, session.held, session.marks) == (MINE, SLICE, ("10.0.0.1/12/345",))


@pytest.mark.parametrize("claimed", [HERS, "../../.ssh", "a\nb\x1b[2J", "a" * 9000], ids=lambda job: ascii(job[:20]))
def test_job_claiming_to_be_own_session_is_reported_not_used(
    claimed: str, cluster: FleetCluster, own: LocalSessions
) -> None:
    with pytest.raises(FleetError, match="as any job can say: add --job with its id") as refused:
        find_session(cluster, [holder(claimed)], HOSTS, own, name="ada", user="ada")
    assert str(refused.value).isprintable() and len(str(refused.value)) < 500


def test_ended_or_differently_named_job_is_no_session(cluster: FleetCluster, own: LocalSessions) -> None:
    own.note(MINE, "ada", SLICE)
    for jobs, name in (([holder(MINE, status="STOPPED")], "ada"), ([], "ada"), ([holder(MINE)], "other")):
        with pytest.raises(FleetError, match="'tradewind dev-tpu allocate TYPE"):
            find_session(cluster, jobs, HOSTS, own, name=name, user="ada")
    own.forget(MINE)
    own.forget(MINE)
    assert own.called("ada") == {}


def test_session_notes_are_private_and_read_only_if_complete(own: LocalSessions, tmp_path: Path) -> None:
    own.note(MINE, "ada", SLICE)
    [file] = (tmp_path / "state").rglob("dev-tpu-*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for text in ("", "ada\n", "ada\nTRADEWIND_DEV_SLICE {", "ada\nTRADEWIND_DEV_SLICE " + "[" * 100_000):
        (file.parent / HERS).write_text(text)
        assert own.called("ada") == {MINE: SLICE}
    (file.parent / HERS).write_bytes(b"ada\n\xff")
    (file.parent / "odd name").write_text(file.read_text())
    assert own.called("ada") == {MINE: SLICE}


@pytest.mark.parametrize(
    "job", ["", "../x", "dev-tpu", "dev-tpu-", "dev-tpu-a/../b", "dev-tpu-a--b", "dev-tpu-A", "dev-tpu-a\n",
            "dev-tpu-" + "a" * 200, "train"],
)  # fmt: skip
def test_only_ids_from_allocate_name_a_folder(job: str, cluster: FleetCluster) -> None:
    assert not is_session_id(job) and is_session_id(MINE)
    with pytest.raises(FleetError, match="is no id that 'dev-tpu allocate' gives") as refused:
        named_session(cluster, cast(Any, None), HOSTS, job)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "hosts",
    [
        [{"ip": "10.0.0.1", "mark": "10.0.0.2/12/345"}], [{"ip": "10.0.0.1", "mark": "::/1/2"}],
        [{"ip": "x", "mark": "x/1/2"}], None,
    ],
    ids=str,
)  # fmt: skip
def test_log_line_with_foreign_mark_or_deep_nesting_is_refused(hosts: list[dict[str, str]] | None) -> None:
    line = "[" * 100_000 if hosts is None else json.dumps({"name": "one", "hosts": hosts, "refused": ""})
    with pytest.raises(BadDevSliceError):
        DevSlice.in_log(f"TRADEWIND_DEV_SLICE {line}")
