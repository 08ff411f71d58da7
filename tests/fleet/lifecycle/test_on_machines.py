"""A cluster from start to stop, by the commands: Ray's own launcher and autoscaler, real heads and hosts, real Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest

from tests.fleet.lifecycle.worlds import IMAGE_TAG, PROJECT, TOKEN, ZONE, update, write_key, write_world_fleet
from tests.fleet.sshd import find_sshd
from tradewind.cli.main import main
from tradewind.fleet.access.reached import reached
from tradewind.fleet.file.load import load_fleet
from tradewind.fleet.lifecycle.inventory import LAUNCH_LABEL, NODE_TYPE_LABEL
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.marker import ClusterMarker
from tradewind.fleet.marker_value import MarkerState
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.request import JobRequest
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.google import LocalGoogle
from tradewind.rehearsal.local.ray_node import node_env
from tradewind.rehearsal.machines.machine import missing_for_machines
from tradewind.rehearsal.machines.machines import SimulatedMachines
from tradewind.rehearsal.machines.network import NetworkError

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@dataclass
class World:
    """A fleet, and the cloud that it is in."""

    fleet: Path
    google: LocalGoogle
    machines: SimulatedMachines


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    find_sshd()
    if (missing := missing_for_machines()) is not None:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("machines")
    key = write_key(folder)
    env = {name: value for name, value in node_env(folder / "home").items() if name.startswith("RAY_")}
    machines = SimulatedMachines(
        folder / "hosts",
        user="ray",
        public_key=key.with_suffix(".pub").read_text(),
        env={**env, "RAY_AUTH_MODE": "token"},
    )
    google = LocalGoogle((PROJECT, ZONE), machines=machines.of_compute, hosts=machines.of_slices)
    google.secrets.put(f"projects/{PROJECT}/secrets/RAY_AUTH_TOKEN", TOKEN)
    google.secrets.put(f"projects/{PROJECT}/secrets/hugging", "as it began")
    storage = LocalCloudStorage()
    try:
        machines.network.start()
    except NetworkError as error:  # root of a container may lack the right to
        pytest.skip(str(error))
    for server in (google, storage):
        server.start()
    storage.buckets.create("my-bucket")
    machines.serve(google)
    google.registry.tags.add(IMAGE_TAG)
    endpoints = ("COMPUTE", "TPU", "SECRET_MANAGER", "ARTIFACT_REGISTRY")
    with pytest.MonkeyPatch.context() as patch:
        for name in endpoints:
            patch.setenv(f"TRADEWIND_{name}_ENDPOINT", google.url)
        patch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        fleet = write_world_fleet(folder / "infra", key, "    environment: {HF_TOKEN: hugging}\n")
        patch.setenv("TRADEWIND_FLEET", str(fleet))
        try:
            yield World(fleet, google, machines)
        finally:
            google.end_all()
            machines.network.stop()
            for server in (google, storage):
                server.stop()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code of a command, what it printed and what it said."""
    with pytest.raises(SystemExit) as end:
        main(["cluster", *words])
    printed = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, printed.out, printed.err


def run_patiently(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The same; gone on with if Ray gave up on a node, which it does after 30 s, too few on a busy machine."""
    code, out, err = run(capsys, *words)
    if "Failed to setup head node" in err:
        code, _, err = run(capsys, *words)
    return code, out, err


def test_a_cluster_comes_up_with_its_slices_in_ray(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_patiently(capsys, "start", "--timeout", "180")
    assert code == 0, err
    assert err.endswith("tradewind: Cluster here is ready.\n")
    code, out, _ = run(capsys, "status", "--json")
    (cluster,) = json.loads(out)["clusters"]
    head, one_slice = cluster["nodes"]
    assert (head["kind"], head["state"], head["is_current"]) == ("head", "RUNNING", True)
    assert (one_slice["kind"], one_slice["in_ray"], one_slice["is_current"]) == ("v4-16", 2, True)
    assert cluster["used"]["TPU"] == {"used": 0, "total": 8} and cluster["marker"] is None


def test_the_hashes_are_those_by_which_ray_knows_what_to_make_anew(world: World) -> None:
    hashes = RayLauncher(world.fleet.parent / "clusters" / "here.yaml", print).launch_hashes()
    (head,) = (one for path, one in world.google.compute.state.resources.items() if "/instances/" in path)
    (held,) = world.google.slices().values()
    for labels in (head["labels"], dict(held.node.labels)):
        assert labels[LAUNCH_LABEL] == hashes[labels[NODE_TYPE_LABEL]]


def test_new_values_reach_the_machines_while_ray_runs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (head,) = (one for name, one in world.machines.running.items() if "head" in name)
    secret = f"projects/{PROJECT}/secrets/hugging"
    world.google.secrets.put(secret, "changed")
    code, out, err = run(capsys, "push-env", "--json")
    told = json.loads(out)
    assert code == 0 and told["versions"] == {"HF_TOKEN": f"{secret}/versions/2"}, err
    assert [(one["state"], one["restart"]) for one in told["hosts"]] == [("written", ["HF_TOKEN"])] * 3
    file = head.folder / "home" / ".tradewind" / "environment" / "HF_TOKEN"
    assert file.read_text() == "changed" and file.stat().st_mode & 0o777 == 0o600
    assert run(capsys, "push-env")[2].count("Of 3 hosts: 3 as it should be.") == 1


def test_more_slices_are_added_while_ray_runs_and_a_new_head_is_refused(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (head,) = (name for name in world.machines.running if "head" in name)
    text = world.fleet.read_text()
    world.fleet.write_text(text.replace("max_workers: 8", "max_workers: 9"))
    assert "run 'tradewind cluster update-configs' first" in run(capsys, "apply")[2]
    update(world.fleet)
    assert "runs already, from another file" in run(capsys, "start", "--no-wait")[2]
    code, _, err = run(capsys, "apply")
    assert code == 0, err
    (there,) = (one for name, one in world.machines.running.items() if name == head)
    config = json.loads((there.folder / "home" / "ray_bootstrap_config.yaml").read_text())
    assert config["max_workers"] == 9 and config["no_restart"] is True
    assert "is as its file has it: nothing was done" in run(capsys, "apply")[2]
    template = world.fleet.parent / "cluster.yaml.j2"
    kept = template.read_text()
    template.write_text(kept.replace("n2-standard-8", "n2-standard-16"))
    update(world.fleet)
    code, _, err = run(capsys, "apply")
    assert code == 1 and f"Ray would make {head} anew" in err
    template.write_text(kept)
    update(world.fleet)
    assert [name for name in world.machines.running if "head" in name] == [head]


def test_a_restart_says_whose_jobs_end_and_the_slices_come_back(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with reached(load_fleet(world.fleet).cluster()) as there:
        RayJobs(there).submit_or_attach(JobRequest("long", "sleep 4242", metadata={"user": "ada"}))
    before = dict(world.machines.running)
    assert run(capsys, "restart")[0] == 2, "nobody agreed"
    code, out, err = run_patiently(capsys, "restart", "--yes", "--timeout", "180")
    assert code == 0, err
    assert out.split()[::2] == ["long", "ada"] and err.endswith("tradewind: Cluster here is ready.\n")
    assert world.machines.running == before
    (cluster,) = json.loads(run(capsys, "status", "--json")[1])["clusters"]
    assert cluster["nodes"][1]["in_ray"] == 2


def test_what_is_stopped_is_gone_but_its_state(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "stop", "--yes")
    assert code == 0 and err.endswith("Cluster here is stopped.\n")
    deleted = [line.split()[1] for line in out.splitlines() if line.startswith("delete")]
    assert deleted == ["head", "v4-16"], "after them comes the job, which Ray goes on calling running"
    assert world.machines.running == {} and world.google.slices() == {}
    assert [path.rpartition("/")[2] for path in world.google.compute.state.resources] == ["ray-here-state"]
    cluster = load_fleet(world.fleet).cluster()
    found = ClusterMarker.of(cluster).read()
    assert found is not None and (found.marker.operation, found.marker.state) == ("stop", MarkerState.DONE)
    assert run(capsys, "stop", "--yes", "--delete-state")[0] == 0
    assert world.google.compute.state.resources == {}
