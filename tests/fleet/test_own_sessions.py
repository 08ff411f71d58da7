"""A slice belongs to a user only if the user's machine has seen that.

A job's own statements about its slice give no access.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.cloud_tpu.host_files import BadDevSliceError, DevHostInfo, DevSlice
from tradewind.fleet.access.hosts import ClusterHosts, FleetError, SliceHost
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.dev_sessions import LocalSessions, find_session, is_session_id, named_session
from tradewind.fleet.fleet_file import load_fleet
from tradewind.ray_jobs.details import JobDetails

MINE, HERS = "dev-tpu-ada-ada-20260301-091244-1f2e", "dev-tpu-ada-ada-20260301-101244-ffff"
HELD = DevSlice("one", (DevHostInfo("10.0.0.1", "10.0.0.1/12/345"),))


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
def cluster(tmp_path: Path) -> FleetCluster:
    return load_fleet(write_fleet(tmp_path)).cluster()


@pytest.fixture
def own(cluster: FleetCluster, tmp_path: Path) -> LocalSessions:
    return LocalSessions(cluster, tmp_path / "state")


def test_session_allocated_here_is_found_despite_foreign_names(cluster: FleetCluster, own: LocalSessions) -> None:
    own.note(MINE, "ada", HELD)
    jobs = [holder(MINE), holder(HERS, 2), holder("../../.ssh", 3)]
    session = find_session(cluster, jobs, HOSTS, own, name="ada", user="ada")
    assert (session.job, session.held, session.marks) == (MINE, HELD, ("10.0.0.1/12/345",))


@pytest.mark.parametrize("claimed", [HERS, "../../.ssh", "a\nb\x1b[2J", "a" * 9000], ids=lambda job: ascii(job[:20]))
def test_job_claiming_to_be_own_session_is_reported_not_used(
    claimed: str, cluster: FleetCluster, own: LocalSessions
) -> None:
    with pytest.raises(FleetError, match="as any job can say: add --job with its id") as told:
        find_session(cluster, [holder(claimed)], HOSTS, own, name="ada", user="ada")
    assert str(told.value).isprintable() and len(str(told.value)) < 500


def test_what_has_ended_or_is_called_otherwise_is_not_held(cluster: FleetCluster, own: LocalSessions) -> None:
    own.note(MINE, "ada", HELD)
    for jobs, name in (([holder(MINE, status="STOPPED")], "ada"), ([], "ada"), ([holder(MINE)], "other")):
        with pytest.raises(FleetError, match="'tradewind dev-tpu allocate TYPE"):
            find_session(cluster, jobs, HOSTS, own, name=name, user="ada")
    own.forget(MINE)
    own.forget(MINE)
    assert own.called("ada") == {}


def test_session_notes_are_private_and_read_only_if_complete(own: LocalSessions, tmp_path: Path) -> None:
    own.note(MINE, "ada", HELD)
    [file] = (tmp_path / "state").rglob("dev-tpu-*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for text in ("", "ada\n", "ada\nTRADEWIND_DEV_SLICE {", "ada\nTRADEWIND_DEV_SLICE " + "[" * 100_000):
        (file.parent / HERS).write_text(text)
        assert own.called("ada") == {MINE: HELD}
    (file.parent / HERS).write_bytes(b"ada\n\xff")
    (file.parent / "odd name").write_text(file.read_text())
    assert own.called("ada") == {MINE: HELD}


@pytest.mark.parametrize(
    "job", ["", "../x", "dev-tpu", "dev-tpu-", "dev-tpu-a/../b", "dev-tpu-a--b", "dev-tpu-A", "dev-tpu-a\n",
            "dev-tpu-" + "a" * 200, "train"],
)  # fmt: skip
def test_only_what_allocate_calls_a_job_names_a_folder(job: str, cluster: FleetCluster) -> None:
    assert not is_session_id(job) and is_session_id(MINE)
    with pytest.raises(FleetError, match="is no id that 'dev-tpu allocate' gives") as told:
        named_session(cluster, cast(Any, None), HOSTS, job)
    assert str(told.value).isprintable() and len(str(told.value)) < 300


@pytest.mark.parametrize(
    "host",
    [{"ip": "10.0.0.1", "mark": "10.0.0.2/12/345"}, {"ip": "10.0.0.1", "mark": "::/1/2"}, {"ip": "x", "mark": "x/1/2"}],
    ids=lambda host: host["mark"],
)
def test_a_mark_is_of_its_host(host: dict[str, str]) -> None:
    line = "TRADEWIND_DEV_SLICE " + json.dumps({"name": "one", "hosts": [host], "refused": ""})
    with pytest.raises(BadDevSliceError):
        DevSlice.in_log(line)


def test_a_holders_line_nested_without_end_is_none() -> None:
    with pytest.raises(BadDevSliceError):
        DevSlice.in_log("TRADEWIND_DEV_SLICE " + "[" * 100_000)
