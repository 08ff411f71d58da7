"""Push the environment to the head and slice hosts through a real ``sshd``, and report each result."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import Ended, Run
from tests.fleet.loopback import LoopbackFleet, loopback_fleet
from tradewind.cloud_tpu.host_files import host_variable
from tradewind.fleet.access.hosts import ClusterHosts
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lock import ClusterLock, MarkerLostError
from tradewind.fleet.push_env import EnvironmentPush, push_line
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage, RefusedError
from tradewind.rehearsal.cloud.secret_manager import LocalSecretManager

COMMAND = ("cluster", "push-env")
pytestmark = pytest.mark.slow

SECRET = "projects/my-project/secrets/hugging"
FIRST, SECOND = "first-value-of-the-test", "second-value-of-the-test"
FIELDS = "environment:\n  HF_TOKEN: hugging\n  WANDB: wandb\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackFleet]:
    """Start a cluster whose machine runs a process with Ray's name and the first secret value."""
    folder = tmp_path_factory.mktemp("environment")
    with loopback_fleet(folder, more=FIELDS) as fleet:
        raylet = shutil.copy(str(shutil.which("sleep")), folder / "raylet")
        env = {"HOME": str(fleet.home), "HF_TOKEN": FIRST, "WANDB": "w", "GONE": "g"}
        with subprocess.Popen([raylet, "3600"], env=env) as process:
            yield fleet
            process.kill()


@pytest.fixture
def marker(cloud: LocalCloudStorage) -> ClusterLock:
    """Return the cluster's lock in its bucket."""
    with suppress(RefusedError):
        cloud.buckets.create("my-bucket")
    return ClusterLock.of(load_fleet(Path(os.environ["TRADEWIND_FLEET"])).cluster("here"))


@pytest.fixture
def files(fleet: LoopbackFleet, marker: ClusterLock) -> Iterator[Path]:
    """Reset each secret to one version; yield the path of the environment files."""
    fleet.google.secrets = LocalSecretManager()
    fleet.google.secrets.put(SECRET, f"{FIRST}\n")
    fleet.google.secrets.put("projects/my-project/secrets/wandb", "w")
    shutil.rmtree(fleet.home / ".tradewind", ignore_errors=True)
    yield fleet.home / ".tradewind" / "environment"


@pytest.fixture
def run(run: Run) -> Run:
    """Check that no output shows a value of a secret."""

    def checked(*words: str) -> Ended:
        ended = run(*words)
        assert not any(value in ended.out + ended.err for value in (FIRST, SECOND))
        return ended

    return checked


def test_files_are_owner_only_and_second_push_is_noop(fleet: LoopbackFleet, files: Path, run: Run) -> None:
    code, out, err = run("here", "--host", "head")
    assert code == 0 and re.search(r"ray-here-head-1 +written +HF_TOKEN, WANDB\n", out), out + err
    assert f"HF_TOKEN is {SECRET}/versions/1." in err and "Later:" not in err
    assert (files / "HF_TOKEN").read_text() == f"{FIRST}\n"
    assert {stat.S_IMODE(file.stat().st_mode) for file in files.iterdir()} == {0o600}
    assert stat.S_IMODE(files.stat().st_mode) == 0o700 and not list(files.parent.glob(".new-*"))
    code, out, err = run("here")
    assert code == 0 and "Of 3 hosts: 3 as it should be." in err and "Effective" not in err
    (files / "WANDB").chmod(0o644)
    assert re.search(r"written +WANDB\n", run("here", "--host", "head")[1])
    assert stat.S_IMODE((files / "WANDB").stat().st_mode) == 0o600


def test_new_version_is_written_and_old_ray_values_reported(
    fleet: LoopbackFleet, files: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("here", "--host", "head")
    (files / "GONE").write_text("g")
    fleet.google.secrets.put(SECRET, SECOND)
    code, out, err = run("here", "--host", "head", "--dry-run", "--json")
    (host,) = json.loads(out)["hosts"]
    assert code == 0 and (host["state"], host["changed"], host["removed"]) == ("would_write", ["HF_TOKEN"], ["GONE"])
    assert (files / "HF_TOKEN").read_text() == f"{FIRST}\n" and (files / "GONE").exists()
    assert not list(files.parent.glob(".new-*"))
    code, out, err = run("here", "--host", "head")
    assert code == 0 and re.search(r"written +HF_TOKEN +GONE +HF_TOKEN, GONE", out), out
    assert "Effective later: Ray on 1 host and the processes of its jobs still have the old GONE, HF_TOKEN" in err
    assert (files / "HF_TOKEN").read_text() == SECOND and not (files / "GONE").exists()
    monkeypatch.setenv("HOME", str(fleet.home))
    assert host_variable("HF_TOKEN", {"HF_TOKEN": FIRST}) == SECOND and host_variable("GONE", {"GONE": "g"}) == "g"


def test_nothing_is_written_when_one_value_cannot_be_had(fleet: LoopbackFleet, files: Path, run: Run) -> None:
    fleet.google.secrets.denied.add("projects/my-project/secrets/wandb")
    code, out, err = run("here", "--host", "one")
    assert code == 1 and out.count("failed") == 2 and not files.exists()
    assert "one:1: projects/my-project/secrets/wandb/versions/1 cannot be read there" in err
    fleet.google.secrets.denied.clear()
    fleet.google.secrets.put("projects/my-project/secrets/wandb", "of two\0hidden")
    code, out, err = run("here", "--host", "one")
    assert code == 1 and "its value holds a NUL, which no variable can" in err and not files.exists()
    fleet.google.secrets.disabled.add(f"{SECRET}/versions/1")
    code, out, err = run("here")
    assert (code, out) == (1, "") and f"HF_TOKEN: {SECRET} has version 1 as its newest" in err
    fleet.google.secrets.disabled.clear()


def test_unreachable_host_is_named_and_others_get_files(fleet: LoopbackFleet, files: Path, run: Run) -> None:
    own_keys, key = fleet.hosts.keys[1], "AAAAC3NzaC1lZDI1NTE5AAAAIJd2lzxVQbRbu3yQK0Hk2vE0tbU3hM1M0W8n7T1x9z1q"
    fleet.hosts.keys[1] = {"ssh-ed25519": key}
    try:
        code, out, err = run("here")
        fleet.hosts.keys[1] = {}
        unknown = run("here")
    finally:
        fleet.hosts.keys[1] = own_keys
    assert code == 1 and re.search(r"one:0 +(written|as it should be)", out) and re.search(r"one:1 +failed", out)
    assert "one:1: Cluster here: the machine at 127.0.0.1 has not the host keys" in err
    assert "Fix the failed hosts, and run the command again" in err and (files / "HF_TOKEN").read_text() == f"{FIRST}\n"
    assert unknown[0] == 1 and "one:0: The hosts of one have not all written down their SSH host keys" in unknown[2]


def test_locked_cluster_blocks_push_but_not_dry_run(
    fleet: LoopbackFleet, files: Path, marker: ClusterLock, run: Run
) -> None:
    with marker.take("rotate-token", "restarting Ray", holder="ada@laptop") as lock:
        code, _, err = run("here", "--host", "head")
        assert code == 1 and "ada@laptop is at rotate-token" in err and not files.exists()
        assert run("here", "--host", "head", "--dry-run")[0] == 0
        lock.finish()


def test_push_stops_when_cluster_lock_is_lost(fleet: LoopbackFleet, files: Path) -> None:
    def lost() -> None:
        raise MarkerLostError("Others may be changing the cluster.")

    hosts = ClusterHosts(load_fleet(Path(os.environ["TRADEWIND_FLEET"])).cluster("here"))
    with pytest.raises(MarkerLostError):
        EnvironmentPush({"HF_TOKEN": f"{SECRET}/versions/1"}).push([hosts.head()], is_dry=False, check=lost)
    assert not files.exists()


def test_nothing_is_written_where_ray_does_not_run(fleet: LoopbackFleet, files: Path, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path)}
    line = push_line({"HF_TOKEN": f"{SECRET}/versions/1"}, is_dry=False)
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"ray": False} and not list(tmp_path.iterdir())
