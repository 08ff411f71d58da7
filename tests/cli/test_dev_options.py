"""``tradewind dev-tpu`` refuses contradictory options before it sends a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.fleets import write_fleet
from tests.fleet.lifecycle.fleet_environment import update
from tests.fleet.sessions import session_of
from tradewind.cloud_tpu.host_files import DevHostInfo, DevSlice
from tradewind.fleet.dev_hosts import FileInfo, lacking
from tradewind.fleet.dev_sessions import FleetError, active_holders, holder_request, refresh_hosts, select_hosts
from tradewind.fleet.fleet_file import load_fleet
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.request import check_request
from tradewind.ray_jobs.worker_python import start_command

COMMAND = ("dev-tpu",)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["allocate", "v5p-8"], 2, "Cluster here has no slices of type 'v5p-8': v4-8, v4-16"),
        (["allocate", "v4-8", "--name", "../x"], 1, "'../x' is no name for a slice"),
        (["allocate", "v4-8", "--cluster", "hers"], 2, "describes no cluster 'hers'"),
        (["allocate", "v4-8", "--heartbeat-timeout", "1"], 2, "--heartbeat-timeout is 1, but must be at least 5"),
        (["execute", "python", "train.py"], 2, "Write the command after '--'"),
        (["execute", "--"], 2, "Write the command after '--'"),
        (["watch", "--working-dir", "nowhere", "--", "ls"], 2, "--working-dir nowhere is not a folder"),
        (["execute", "-e", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345", "--", "ls"], 2, "-e HF_TOKEN looks like"),
    ],
)
def test_contradictory_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, words: list[str], code: int, says: str
) -> None:
    monkeypatch.setenv("TRADEWIND_FLEET", str(write_fleet(tmp_path)))
    ended, _, err = run(*words)
    assert ended == code and says in err and "abcdefghij" not in err, err


def test_owned_cluster_given_by_name_or_file_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.delenv("TRADEWIND_FLEET", raising=False)
    file = str(write_fleet(tmp_path, "owner: hero\n"))
    update(Path(file))
    for words in (["--cluster", str(tmp_path / "clusters" / "here.yaml")], ["--fleet", file]):
        code, _, err = run("allocate", "v4-8", *words)
        assert code == 2 and "Cluster here takes only jobs of hero, as the fleet file says, and this is ada's." in err
    code, _, err = run("allocate", "v4-8", "--cluster", file, "--fleet", file)
    assert code == 2 and "'tradewind cluster update-configs' did not write" in err


def test_session_holder_is_small_head_job_naming_its_user() -> None:
    request = check_request(holder_request("mine", "Ada L.", "v4-8", wait_s=0.0, silent_s=90.0, runtime_env={}))
    assert request.submission_id.startswith("dev-tpu-ada-l-mine-") and request.metadata["user"] == "Ada L."
    holder = f"python -u -m tradewind.runtime.dev_slice {request.submission_id} v4-8 --silent 90 --wait 0"
    assert request.entrypoint == start_command(holder)
    assert request.num_cpus == 0 and list(request.resources or {}) == ["node:__internal_head__"]


def test_own_slice_of_that_name_is_found_newest_first() -> None:
    def job(name: str, status: str, dev: str, user: str, started: int) -> JobDetails:
        return JobDetails(name, status, metadata={"dev_tpu": dev, "user": user}, started_ms=started)

    mine = [job("old", "RUNNING", "mine", "ada", 1), job("new", "PENDING", "mine", "ada", 2)]
    others = [
        job("ended", "STOPPED", "mine", "ada", 3),
        job("other-name", "RUNNING", "other", "ada", 4),
        job("other-user", "RUNNING", "mine", "eve", 5),
        JobDetails("plain", "RUNNING"),
    ]
    assert [one.job for one in active_holders([*mine, *others], "mine", "ada")] == ["new", "old"]


def test_recreated_slice_is_not_the_reserved_one(tmp_path: Path) -> None:
    cluster = load_fleet(write_fleet(tmp_path)).cluster()
    hosts = session_of("10.0.0.1", "10.0.0.2").hosts
    held = DevSlice("one", tuple(DevHostInfo(host.internal_ip, f"{host.internal_ip}/1/2") for host in hosts))
    assert refresh_hosts(cluster, "job", held, hosts).marks == ("10.0.0.1/1/2", "10.0.0.2/1/2")
    with pytest.raises(FleetError, match="has other hosts than when job job reserved it"):
        refresh_hosts(cluster, "job", held, session_of("10.0.0.1", "10.0.0.3").hosts)


def test_hosts_are_meant_by_their_numbers() -> None:
    session = session_of("10.0.0.1", "10.0.0.2")
    assert select_hosts(session, []) == [0, 1] and select_hosts(session, [1, 1]) == [1]
    with pytest.raises(FleetError, match="Slice one has no host 2: it has 0 to 1"):
        select_hosts(session, [2])


def test_files_of_other_size_or_mtime_are_sent() -> None:
    here = {name: FileInfo(3, 7, 0o644) for name in ("same", "other size", "other time", "new")}
    has = {"same": [3, 7], "other size": [4, 7], "other time": [3, 8], "gone": [3, 7]}
    assert lacking(here, has) == {"other size", "other time", "new"}
