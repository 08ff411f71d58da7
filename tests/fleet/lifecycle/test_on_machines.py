"""A cluster from start to stop by commands: Ray's launcher and autoscaler, real heads, hosts and Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fleet.lifecycle.fleet_environment import PROJECT, TOKEN, update
from tests.fleet.lifecycle.machine_environment import (
    AT_WORK,
    CHECKPOINTS,
    SECRET,
    World,
    WorldAirflow,
    running_airflow,
    running_world,
)
from tests.support.waiting import until
from tradewind.cli.main import main
from tradewind.fleet.access.connect import connected
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.inventory import LAUNCH_LABEL, NODE_TYPE_LABEL
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.lock import ClusterLock, LockState
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.errors import RayAuthenticationError
from tradewind.ray_jobs.probe import check_connection
from tradewind.ray_jobs.request import JobRequest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch, running_world(tmp_path_factory.mktemp("machines"), patch) as world:
        yield world


@pytest.fixture(scope="module")
def house(world: World) -> Iterator[WorldAirflow]:
    with running_airflow(world) as house:
        yield house


DAGS = {"jobs_at_work": {"command": AT_WORK}, "steps_at_work": {}}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return a command's exit code, output and error output."""
    with pytest.raises(SystemExit) as end:
        main(["cluster", *words])
    printed = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, printed.out, printed.err


def run_patiently(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command and repeat it if Ray gave up on a node.

    Ray waits 30 s for a node, which is too short on a busy machine.
    """
    code, out, err = run(capsys, *words)
    if "Failed to setup head node" in err:
        code, _, err = run(capsys, *words)
    return code, out, err


def statuses(world: World) -> dict[str, str]:
    """Return job → its status in Ray."""
    with connected(load_fleet(world.fleet).cluster()) as there:
        return {job.job: job.status for job in RayJobs(there).jobs()}


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


def test_launch_hashes_match_node_labels(world: World) -> None:
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


def test_apply_adds_slices_to_running_ray_but_no_new_head(world: World, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "follows its file already: nothing was done" in run(capsys, "apply")[2]
    template = world.fleet.parent / "cluster.yaml.j2"
    kept = template.read_text()
    template.write_text(kept.replace("n2-standard-8", "n2-standard-16"))
    update(world.fleet)
    code, _, err = run(capsys, "apply")
    assert code == 1 and f"Ray would relaunch {head}" in err
    template.write_text(kept)
    update(world.fleet)
    assert [name for name in world.machines.running if "head" in name] == [head]


def test_a_restart_that_nobody_agrees_to_is_none(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with connected(load_fleet(world.fleet).cluster()) as there:
        for name in ("ada", "bob"):
            RayJobs(there).submit_or_attach(JobRequest(name, AT_WORK.replace("NAME", name), metadata={"user": name}))
        RayJobs(there).submit_or_attach(JobRequest("eve", "true", resources={"never": 1.0}, metadata={"user": "eve"}))
    code, out, err = run(capsys, "restart")
    assert code == 2 and "There is no terminal to confirm on" in err
    assert sorted(line.split()[::2] for line in out.splitlines()) == [["ada", "ada"], ["bob", "bob"], ["eve", "eve"]]


def test_dag_restart_loses_no_job_and_duplicates_none(world: World, house: WorldAirflow) -> None:
    """Three tasks during a job, a pod in training, two running jobs of users and a waiting one."""
    runs = {dag: house.begin(dag, conf) for dag, conf in DAGS.items()}
    at_work = {"ada", "bob", "on_head", "on_host", "step", "trains-0", "trains-1", "from-0"}
    until(lambda: world.starts().keys() == at_work, "all to be at work", world.starts)
    until(lambda: world.saved_steps() > 1, "the training to have come further")
    machines, saved = dict(world.machines.running), world.saved_steps()
    run_id = house.begin("cluster_restart", {"cluster": "here", "reason": "its memory is full"})
    until(lambda: house.states("cluster_restart", run_id)["approve"][0] == "awaiting_input", "somebody to be asked")
    assert sorted(house.api.xcom("cluster_restart", run_id, "people")["jobs"]) == ["ada", "bob", "eve"]
    until(lambda: house.is_left("cluster_restart", "approve"), "its process to have ended")
    house.api.answer("cluster_restart", run_id, "approve", "Approve")
    assert set((ends := house.end("cluster_restart", run_id)).values()) == {("success", 1)}, ends
    told = house.api.xcom("cluster_restart", run_id, "restart")["jobs"]
    new = {one["job"]: one["new"] for one in told}
    assert world.machines.running == machines

    again = ("on_head", "step", "trains-0", "trains-1")
    until(
        lambda: all(world.starts()[name] == 2 for name in again),
        "all to go on",
        lambda: (world.starts(), world.drivers()),
    )
    world.open_gate()
    for dag, run_of in runs.items():
        assert set(house.end(dag, run_of).values()) == {("success", 1)}, dag
    check_people(world, new)
    check_tasks(world, house, runs)
    check_training(world, saved)


def check_people(world: World, new: dict[str, str | None]) -> None:
    """Check that each user's job came back once, with the submission ID of the one restart."""
    assert sorted(new) == ["ada", "bob", "eve"]
    (restart,) = {str(name).rpartition("-r-")[2] for name in new.values()}
    assert new == {name: f"{name}-r-{restart}" for name in new}
    until(lambda: statuses(world)[f"bob-r-{restart}"] == "SUCCEEDED", "the job to end", lambda: statuses(world))
    until(lambda: statuses(world)[f"ada-r-{restart}"] == "SUCCEEDED", "the job to end", lambda: statuses(world))
    found = statuses(world)
    assert [name for name, status in found.items() if status in ("RUNNING", "PENDING")] == [f"eve-r-{restart}"]
    assert {name for name in found if "-r-" in name} == set(new.values())
    assert world.starts()["ada"] == world.starts()["bob"] == 2


def check_tasks(world: World, house: WorldAirflow, runs: dict[str, str]) -> None:
    """Check that jobs on the head ran once more, and jobs on a host continued.

    The task's log has each line once.
    """
    assert (world.starts()["on_head"], world.starts()["on_host"], world.starts()["step"]) == (2, 1, 2)
    check_lines(house, runs["jobs_at_work"])
    assert world.read("work/step-*/made") == [b"made"]


def check_lines(house: WorldAirflow, run_id: str) -> None:
    """Check that the task's log has the last attempt's lines once; an earlier trigger's lines are gone."""
    for task in ("on_head", "on_host"):
        log = house.log("jobs_at_work", run_id, task)
        lines = [line.partition(" info ")[2] for line in log.splitlines()]
        assert (lines.count(f"{task} began"), lines.count(f"{task} ended")) == (1, 1), log
        assert TOKEN not in log


def check_training(world: World, saved: int) -> None:
    """Check that both hosts continued from the newest checkpoint, with steps as in a baseline run."""
    assert world.starts()["trains-0"] == world.starts()["trains-1"] == 2
    first, second = sorted(int(name.removeprefix("from-")) for name in world.starts() if name.startswith("from-"))
    assert first == 0 and second >= saved
    steps = sorted((json.loads(text) for text in world.read(CHECKPOINTS)), key=lambda one: one["step"])
    assert [one["step"] for one in steps] == list(range(1, len(steps) + 1)) and len(steps) > second
    for one in steps:
        assert one["weight"] == pytest.approx(3.0 * (1 - 0.8 ** one["step"]), rel=1e-4)


def test_a_token_is_rotated_under_tasks_that_wait(
    world: World, house: WorldAirflow, capsys: pytest.CaptureFixture[str]
) -> None:
    world.close_gate()
    before = world.starts()
    run_id = house.begin("jobs_at_work", DAGS["jobs_at_work"])
    until(lambda: (world.starts() - before).keys() == {"on_head", "on_host"}, "both to be at work")
    code, _, err = run_patiently(capsys, "rotate-token", "--yes", "--timeout", "180")
    assert code == 0 and err.endswith("tradewind: Cluster here is ready.\n"), err
    assert [world.google.secrets.state(f"{SECRET}/versions/{number}") for number in (1, 2)] == ["DISABLED", "ENABLED"]
    with connected(load_fleet(world.fleet).cluster()) as there:
        assert there.token != TOKEN
        with pytest.raises(RayAuthenticationError):
            check_connection(replace(there, token=TOKEN))
    until(lambda: set((world.starts() - before).values()) == {2}, "both to be made once more", world.starts)
    world.open_gate()
    assert house.end("jobs_at_work", run_id) == {"on_head": ("success", 1), "on_host": ("success", 1)}
    check_lines(house, run_id)
    assert world.starts() - before == {"on_head": 2, "on_host": 2}


def test_what_is_stopped_is_gone_but_its_state(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "stop", "--yes")
    assert code == 0 and err.endswith("Cluster here is stopped.\n")
    deleted = [line.split()[1] for line in out.splitlines() if line.startswith("delete")]
    assert deleted == ["head", "v4-16"], "after them comes the job, which Ray goes on calling running"
    assert world.machines.running == {} and world.google.slices() == {}
    assert [path.rpartition("/")[2] for path in world.google.compute.state.resources] == ["ray-here-state"]
    cluster = load_fleet(world.fleet).cluster()
    found = ClusterLock.of(cluster).read()
    assert found is not None and (found.marker.operation, found.marker.state) == ("stop", LockState.DONE)
    assert run(capsys, "stop", "--yes", "--delete-state")[0] == 0
    assert world.google.compute.state.resources == {}
