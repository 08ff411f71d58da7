"""A cluster from start to stop by commands: Ray's launcher and autoscaler, real heads, hosts and Ray."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fleet.lifecycle.fleet_environment import PROJECT, TOKEN, update
from tests.fleet.lifecycle.machine_environment import (
    AT_WORK,
    CHECKPOINTS,
    SECRET,
    Environment,
    FleetAirflow,
    running_airflow,
    running_fleet,
)
from tests.support.machines import Machine
from tests.support.waiting import until
from tradewind.cli.main import main
from tradewind.fleet.access.connect import connected
from tradewind.fleet.lifecycle.inventory import LAUNCH_LABEL, NODE_TYPE_LABEL
from tradewind.fleet.lifecycle.launcher import RayLauncher
from tradewind.fleet.lock import ClusterLock, LockState
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.errors import RayAuthenticationError
from tradewind.ray_jobs.probe import check_connection
from tradewind.ray_jobs.request import JobRequest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    with pytest.MonkeyPatch.context() as patch, running_fleet(tmp_path_factory.mktemp("machines"), patch) as env:
        yield env


@pytest.fixture(scope="module")
def airflow(env: Environment) -> Iterator[FleetAirflow]:
    with running_airflow(env) as airflow:
        yield airflow


DAGS = {"jobs_at_work": {"command": AT_WORK}, "steps_at_work": {}}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return a command's exit code, output and error output."""
    with pytest.raises(SystemExit) as end:
        main(["cluster", *words])
    printed = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, printed.out, printed.err


def run_retrying(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command, and again if Ray gave up on a node: its 30 s for a node are too short on a busy machine."""
    code, out, err = run(capsys, *words)
    if "Failed to setup head node" in err:
        code, _, err = run(capsys, *words)
    return code, out, err


def statuses(env: Environment) -> dict[str, str]:
    """Return job → its status in Ray."""
    with connected(env.cluster) as cluster:
        return {job.job: job.status for job in RayJobs(cluster).jobs()}


def heads(env: Environment) -> list[Machine]:
    return [machine for name, machine in env.machines.running.items() if "head" in name]


def test_start_waits_for_slices_in_ray(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_retrying(capsys, "start", "--timeout", "180")
    assert code == 0, err
    assert err.endswith("tradewind: Cluster here is ready.\n")
    code, out, _ = run(capsys, "status", "--json")
    (cluster,) = json.loads(out)["clusters"]
    head, one_slice = cluster["nodes"]
    assert (head["kind"], head["state"], head["is_current"]) == ("head", "RUNNING", True)
    assert (one_slice["kind"], one_slice["in_ray"], one_slice["is_current"]) == ("v4-16", 2, True)
    assert cluster["used"]["TPU"] == {"used": 0, "total": 8} and cluster["marker"] is None


def test_launch_hashes_match_node_labels(env: Environment) -> None:
    hashes = RayLauncher(env.fleet.parent / "clusters" / "here.yaml", print).launch_hashes()
    (head,) = (one for path, one in env.google.compute.state.resources.items() if "/instances/" in path)
    (held,) = env.google.slices().values()
    for labels in (head["labels"], dict(held.node.labels)):
        assert labels[LAUNCH_LABEL] == hashes[labels[NODE_TYPE_LABEL]]


def test_push_env_reaches_all_machines_while_ray_runs(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    (head,) = heads(env)
    secret = f"projects/{PROJECT}/secrets/hugging"
    env.google.secrets.put(secret, "changed")
    code, out, err = run(capsys, "push-env", "--json")
    report = json.loads(out)
    assert code == 0 and report["versions"] == {"HF_TOKEN": f"{secret}/versions/2"}, err
    assert [(one["state"], one["restart"]) for one in report["hosts"]] == [("written", ["HF_TOKEN"])] * 3
    file = head.folder / "home" / ".tradewind" / "environment" / "HF_TOKEN"
    assert file.read_text() == "changed" and file.stat().st_mode & 0o777 == 0o600
    assert run(capsys, "push-env")[2].count("Of 3 hosts: 3 as it should be.") == 1


def test_apply_adds_slices_to_running_ray_but_no_new_head(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    (head,) = heads(env)
    env.fleet.write_text(env.fleet.read_text().replace("max_workers: 8", "max_workers: 9"))
    assert "run 'tradewind cluster update-configs' first" in run(capsys, "apply")[2]
    update(env.fleet)
    assert "runs already, from another file" in run(capsys, "start", "--no-wait")[2]
    code, _, err = run(capsys, "apply")
    assert code == 0, err
    config = json.loads((head.folder / "home" / "ray_bootstrap_config.yaml").read_text())
    assert config["max_workers"] == 9 and config["no_restart"] is True
    assert "follows its file already: nothing was done" in run(capsys, "apply")[2]
    template = env.fleet.parent / "cluster.yaml.j2"
    text = template.read_text()
    template.write_text(text.replace("n2-standard-8", "n2-standard-16"))
    update(env.fleet)
    code, _, err = run(capsys, "apply")
    assert code == 1 and f"Ray would relaunch {head.name}" in err
    template.write_text(text)
    update(env.fleet)
    assert heads(env) == [head]


def test_restart_without_confirmation_only_lists_jobs(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    with connected(env.cluster) as cluster:
        for name in ("ada", "bob"):
            RayJobs(cluster).submit_or_attach(JobRequest(name, AT_WORK.replace("NAME", name), metadata={"user": name}))
        RayJobs(cluster).submit_or_attach(JobRequest("eve", "true", resources={"never": 1.0}, metadata={"user": "eve"}))
    code, out, err = run(capsys, "restart")
    assert code == 2 and "There is no terminal to confirm on" in err
    assert sorted(line.split()[::2] for line in out.splitlines()) == [["ada", "ada"], ["bob", "bob"], ["eve", "eve"]]


def test_dag_restart_loses_no_job_and_duplicates_none(env: Environment, airflow: FleetAirflow) -> None:
    """Three tasks during a job, a pod in training, two running jobs of users and a waiting one."""
    runs = {dag: airflow.start_run(dag, conf) for dag, conf in DAGS.items()}
    at_work = {"ada", "bob", "on_head", "on_host", "step", "trains-0", "trains-1", "from-0"}
    until(lambda: env.starts().keys() == at_work, "all to run", env.starts)
    until(lambda: len(env.read(CHECKPOINTS)) > 1, "two checkpoints")
    machines, saved = dict(env.machines.running), len(env.read(CHECKPOINTS))
    run_id = airflow.start_run("cluster_restart", {"cluster": "here", "reason": "its memory is full"})
    until(lambda: airflow.states("cluster_restart", run_id)["approve"][0] == "awaiting_input", "the approval")
    assert sorted(airflow.api.xcom("cluster_restart", run_id, "people")["jobs"]) == ["ada", "bob", "eve"]
    until(lambda: airflow.has_released("cluster_restart", "approve"), "the end of its process")
    airflow.api.answer("cluster_restart", run_id, "approve", "Approve")
    assert set((ends := airflow.finish("cluster_restart", run_id)).values()) == {("success", 1)}, ends
    new = {one["job"]: one["new"] for one in airflow.api.xcom("cluster_restart", run_id, "restart")["jobs"]}
    assert env.machines.running == machines

    again = Counter(["on_head", "step", "trains-0", "trains-1"] * 2)
    until(lambda: again <= env.starts(), "all to start again", env.starts)
    env.set_gate(is_open=True)
    for dag, run_of in runs.items():
        assert set(airflow.finish(dag, run_of).values()) == {("success", 1)}, dag
    check_users_jobs(env, new)
    assert (env.starts()["on_head"], env.starts()["on_host"], env.starts()["step"]) == (2, 1, 2)
    check_lines(airflow, runs["jobs_at_work"])
    assert env.read("work/step-*/made") == [b"made"]
    check_training(env, saved)


def check_users_jobs(env: Environment, new: dict[str, str | None]) -> None:
    """Check that each user's job came back once, with the submission ID of the one restart."""
    assert sorted(new) == ["ada", "bob", "eve"]
    (restart,) = {str(name).rpartition("-r-")[2] for name in new.values()}
    assert new == {name: f"{name}-r-{restart}" for name in new}
    for name in ("ada", "bob"):
        restored = f"{name}-r-{restart}"
        until(lambda job=restored: statuses(env)[job] == "SUCCEEDED", "the job to end", lambda: statuses(env))
    found = statuses(env)
    assert [name for name, status in found.items() if status in ("RUNNING", "PENDING")] == [f"eve-r-{restart}"]
    assert {name for name in found if "-r-" in name} == set(new.values())
    assert env.starts()["ada"] == env.starts()["bob"] == 2


def check_lines(airflow: FleetAirflow, run_id: str) -> None:
    """Check that the task's log has the last attempt's lines once; an earlier trigger's lines are gone."""
    for task in ("on_head", "on_host"):
        log = airflow.api.task_log("jobs_at_work", run_id, task, 1)
        lines = [line.partition(" info ")[2] for line in log.splitlines()]
        assert (lines.count(f"{task} began"), lines.count(f"{task} ended")) == (1, 1), log
        assert TOKEN not in log


def check_training(env: Environment, saved: int) -> None:
    """Check that both hosts continued from the newest checkpoint, with steps as in a baseline run."""
    assert env.starts()["trains-0"] == env.starts()["trains-1"] == 2
    first, second = sorted(int(name.removeprefix("from-")) for name in env.starts() if name.startswith("from-"))
    assert first == 0 and second >= saved
    steps = sorted((json.loads(text) for text in env.read(CHECKPOINTS)), key=lambda one: one["step"])
    assert [one["step"] for one in steps] == list(range(1, len(steps) + 1)) and len(steps) > second
    for one in steps:
        assert one["weight"] == pytest.approx(3.0 * (1 - 0.8 ** one["step"]), rel=1e-4)


def test_token_rotation_under_waiting_tasks(
    env: Environment, airflow: FleetAirflow, capsys: pytest.CaptureFixture[str]
) -> None:
    env.set_gate(is_open=False)
    before = env.starts()
    run_id = airflow.start_run("jobs_at_work", DAGS["jobs_at_work"])
    until(lambda: (env.starts() - before).keys() == {"on_head", "on_host"}, "both to run")
    code, _, err = run_retrying(capsys, "rotate-token", "--yes", "--timeout", "180")
    assert code == 0 and err.endswith("tradewind: Cluster here is ready.\n"), err
    assert [env.google.secrets.state(f"{SECRET}/versions/{number}") for number in (1, 2)] == ["DISABLED", "ENABLED"]
    with connected(env.cluster) as cluster:
        assert cluster.token != TOKEN
        with pytest.raises(RayAuthenticationError):
            check_connection(replace(cluster, token=TOKEN))
    until(lambda: set((env.starts() - before).values()) == {2}, "both to start again", env.starts)
    env.set_gate(is_open=True)
    assert airflow.finish("jobs_at_work", run_id) == {"on_head": ("success", 1), "on_host": ("success", 1)}
    check_lines(airflow, run_id)
    assert env.starts() - before == {"on_head": 2, "on_host": 2}


def test_stop_keeps_only_the_state_disk(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "stop", "--yes")
    assert code == 0 and err.endswith("Cluster here is stopped.\n")
    deleted = [line.split()[1] for line in out.splitlines() if line.startswith("delete")]
    assert deleted == ["head", "v4-16"], "the job, which Ray still reports as running, follows"
    assert env.machines.running == {} and env.google.slices() == {}
    assert [path.rpartition("/")[2] for path in env.google.compute.state.resources] == ["ray-here-state"]
    stored = ClusterLock.of(env.cluster).read()
    assert stored is not None and (stored.marker.operation, stored.marker.state) == ("stop", LockState.DONE)
    assert run(capsys, "stop", "--yes", "--delete-state")[0] == 0
    assert env.google.compute.state.resources == {}
