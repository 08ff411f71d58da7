"""A step's driver on real Ray slices: it retries, gives up with a reason, and stops on request."""

from __future__ import annotations

import json
import os
import shlex
import signal
import textwrap
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.marin.checkouts import put, run_text
from tests.ray_jobs.ended_jobs import ended_job
from tests.runtime.driven import BRISK_S, REPOSITORY, result_of
from tests.support.claims import claimed, driver_arguments
from tests.support.shared_clusters import shared_cluster
from tests.support.waiting import limit_s, until
from tradewind.cli.main import main
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.request import JobRequest
from tradewind.records.attempts import Attempt, AttemptOutcome, attempt_folder, attempt_path, read_attempt
from tradewind.records.lease_store import LeaseStore
from tradewind.runtime.pods.timeline import TimelineEvent, read_timeline
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import StepSpec, step_spec
from tradewind.steps import ExecutorStep, Hosts, ResolvedStep, TpuSlice, remote, resolve, this_output_path, versioned

pytestmark = pytest.mark.ray


@dataclass(frozen=True)
class Config:
    output_path: Any
    function: Any


def restarts() -> int:
    return int(os.environ["TRADEWIND_RESTARTS"])


def save(config: Config, step: int) -> None:
    checkpoint = Path(config.output_path, "checkpoints", f"step-{step}")
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata.json").write_text("{}")


@remote(resources={"TPU": 4, "TPU-v4-8-head": 1})
def fails_twice_on_its_way(config: Config) -> int:
    """Raise the same error twice, with a new checkpoint before each."""
    if restarts() < 2:
        save(config, 10 * (restarts() + 1))
        raise RuntimeError("not yet")
    return restarts()


def is_wrong(config: Config) -> None:
    raise ValueError("no such column")


def stays_once(config: Config) -> int:
    if restarts() == 0:
        Path(config.output_path, "pid").write_text(str(os.getpid()))
        signal.pause()
    return restarts()


def changes_what_runs_next(config: Config) -> None:
    file = Path(attempt_path(config.output_path, 1))
    fields = json.loads(file.read_text())
    fields["spec"]["function"] = "os:getcwd"
    file.write_text(json.dumps(fields))
    raise RuntimeError("and once more")


def is_refused(config: Config) -> None: ...


def refuse(config: Config, devices: int) -> None:
    raise ValueError(f"nothing can be divided by {devices}")


is_refused.preflight = refuse  # type: ignore[attr-defined]


class Cluster:
    """The cluster and the steps that run on it."""

    def __init__(self, store: Path) -> None:
        self.ray, self.store = shared_cluster("slices"), store
        self.steps: dict[str, ResolvedStep] = {}
        self.jobs = RayJobs(RayCluster("here", self.ray.address))

    def start(self, fn: Callable[[Config], Any], resources: Any) -> Attempt:
        config = Config(this_output_path(), versioned(fn.__name__))
        step = ExecutorStep("s", fn, config, resources=resources, resumable=["checkpoints/**"])
        return self.start_step(step, REPOSITORY)

    def start_step(self, step: ExecutorStep, code: Path, path: str = "") -> Attempt:
        resolved = resolve([step], str(self.store / uuid.uuid4().hex)).of(step)
        job = f"step-on-slices-{uuid.uuid4().hex[:8]}"
        attempt = claimed(resolved, step_spec(resolved, CodeFolder(code)), job=job, heartbeat_s=BRISK_S)
        self.steps[job] = resolved
        words = ["python", "-u", "-m", "tradewind.runtime.run_step", *driver_arguments(attempt)]
        env = {"env_vars": {"PYTHONPATH": path}} if path else {}
        self.jobs.submit_or_attach(JobRequest(job, shlex.join(words), env, num_cpus=0.0))
        return attempt

    def finish(self, attempt: Attempt) -> tuple[Attempt, list[TimelineEvent]]:
        """Wait for the end of the job; return the ended attempt and its timeline."""
        ended_job(self.jobs, attempt.job)
        output = attempt.spec["output_path"]
        ended = read_attempt(attempt_path(output, attempt.number))
        assert ended is not None and ended.outcome is not None, self.log(attempt)
        return ended, timeline_of(output)

    def log(self, attempt: Attempt) -> str:
        return Path(attempt_folder(attempt.spec["output_path"], attempt.number), "driver.log").read_text()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("store"))


def timeline_of(output_path: str) -> list[TimelineEvent]:
    return read_timeline(f"{attempt_folder(output_path, 1)}/timeline.json")


def names(events: list[TimelineEvent]) -> list[str]:
    return [event.name for event in events]


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_failure_after_new_checkpoint_is_restarted(cluster: Cluster) -> None:
    ended, events = cluster.finish(cluster.start(fails_twice_on_its_way, None))
    assert ended.outcome is AttemptOutcome.SUCCEEDED, cluster.log(ended)
    assert result_of(ended.spec["output_path"]) == 2
    assert (names(events).count("started"), names(events).count("failed"), names(events)[-1]) == (3, 2, "done")
    assert [event.checkpoint_step for event in events if event.name == "failed"] == [10, 20]


def test_repeated_error_ends_after_two_runs_and_is_recorded(cluster: Cluster) -> None:
    ended, events = cluster.finish(cluster.start(is_wrong, TpuSlice("v4-8")))
    assert ended.outcome is AttemptOutcome.FAILED and ended.error is not None
    assert names(events).count("started") == 2
    assert ended.error.type == "ValueError"
    assert ended.error.message.startswith("no such column (")
    assert "It failed twice with the same traceback" in ended.error.message
    assert "0 preemptions, 2 failures" in ended.error.message
    assert "in is_wrong" in ended.error.traceback


MARIN_FILE = """
    import os
    import ray
    from levanter.infra.ray_tpu import run_on_pod_resumable
    from marin.resources import TpuPodConfig
    from marin.utils import remove_tpu_lockfile_on_exit

    @remove_tpu_lockfile_on_exit
    def work():
        return [os.environ[name] for name in ("TPU_NAME", "TRADEWIND_NUM_PROCESSES", "GIVEN")]

    @ray.remote(num_cpus=0.1)
    def train(config):
        hw_config = TpuPodConfig("v4-8").with_env_vars(GIVEN="value")

        @ray.remote(**hw_config.as_remote_kwargs(), max_calls=1)
        def task():
            return work()

        return run_on_pod_resumable(task, hw_config.accelerator_descriptor(), max_retries_failure=10)

    if __name__ == "__main__":
        executor_main([ExecutorStep("pod", train, None)])
"""


def test_marin_pattern_for_pods_runs_unchanged(cluster: Cluster, tmp_path: Path) -> None:
    (call,) = run_text(tmp_path, textwrap.dedent(MARIN_FILE)).calls
    put(tmp_path / "src/marin/execution/executor.py", "from tradewind import *\n")
    put(tmp_path / "src/levanter/__init__.py", "")  # the installed one loads JAX
    (step,) = call.steps
    attempt = cluster.start_step(step, tmp_path, f"{tmp_path}:{tmp_path / 'src'}:{REPOSITORY}")
    ended, _ = cluster.finish(attempt)
    assert ended.outcome is AttemptOutcome.SUCCEEDED, cluster.log(ended)
    ((name, *others),) = result_of(ended.spec["output_path"])
    assert name in ("a", "b") and others == ["1", "value"]


@pytest.mark.parametrize(
    ("ends", "outcome"), [("stopped", AttemptOutcome.STOPPED), ("taken over", AttemptOutcome.LOST)]
)
def test_passed_lease_deadline_kills_slice_processes_at_once(
    cluster: Cluster, ends: str, outcome: AttemptOutcome
) -> None:
    attempt = cluster.start(stays_once, TpuSlice("v4-8"))
    output = attempt.spec["output_path"]
    process = psutil.Process(int(until(lambda: text_of(Path(output, "pid")))))
    if ends == "stopped":
        LeaseStore(output).request_stop(attempt.job, {"try": 2})
    else:
        claimed(cluster.steps[attempt.job], StepSpec.from_json(attempt.spec), job="another")
    ended, events = cluster.finish(attempt)
    process.wait(limit_s())
    assert ended.outcome is outcome
    assert names(events)[-1] == "started"


def test_hosts_refuse_spec_changed_since_claim(cluster: Cluster) -> None:
    ended, events = cluster.finish(cluster.start(changes_what_runs_next, Hosts(1, max_failures=1)))
    assert ended.outcome is AttemptOutcome.LOST and ended.spec["function"].endswith("changes_what_runs_next")
    assert names(events).count("started") == 2
    assert "changed after this driver began" in cluster.log(ended)


def test_config_refused_by_check_reserves_nothing(cluster: Cluster) -> None:
    ended, events = cluster.finish(cluster.start(is_refused, TpuSlice("v4-8", num_slices=(2, 1))))
    assert ended.error is not None
    assert (ended.error.type, ended.error.message) == ("ValueError", "nothing can be divided by 4")
    assert events == []


SCRIPT = """
import os
from pathlib import Path
from tradewind import ExecutorStep, TpuSlice, experiment_dag, this_output_path

def tell(config):
    rank = os.environ["TRADEWIND_PROCESS_ID"]
    Path(config["out"], f"starts-{rank}").open("a").write(f"{os.environ['TPU_NAME']} {os.environ['TPU_WORKER_ID']};")
    return int(os.environ["TRADEWIND_NUM_PROCESSES"])

step = ExecutorStep("s", tell, {"out": this_output_path()}, resources=TpuSlice("v4-8", num_slices=2, max_failures=0))
experiment_dag("s", [step])
"""


def test_ray_job_script_runs_step_once_per_host_then_reuses_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project" / "below").mkdir(parents=True)
    (tmp_path / "project" / "below" / "experiment.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("RAY_ADDRESS", cluster.ray.address)
    monkeypatch.setenv("HOME", str(tmp_path))  # hide the Ray token of the user who runs this test
    logs = []
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main(["jobs", "submit", "--", "python", "below/experiment.py", "--prefix", str(tmp_path / "store")])
        printed = capsys.readouterr()
        assert not end.value.code, printed
        logs.append(printed.out)
    assert "1 step: 1 RUN" in logs[0] and "1 step: 1 REUSE" in logs[1]
    assert not any("the CPUs of this machine" in log for log in logs)
    (output,) = (tmp_path / "store").glob("s-*")
    assert json.loads((output / ".artifact.json").read_text()) == 2
    starts = {path.name: path.read_text() for path in output.glob("starts-*")}
    assert starts.keys() == {"starts-0", "starts-1"} and all(text.endswith(" 0;") for text in starts.values())
    assert len({*starts.values()}) == 2, "each process has a slice of its own"


def test_lost_slice_is_no_failure_and_attempt_continues(cluster: Cluster) -> None:
    attempt = cluster.start(stays_once, TpuSlice("v4-8", max_failures=0))
    output = attempt.spec["output_path"]
    until(lambda: text_of(Path(output, "pid")))
    (lost,) = until(lambda: [event for event in timeline_of(output) if event.name == "reserved"])[0].slices
    cluster.ray.kill_slice(lost)  # must be the last test: the cluster has one slice afterwards
    ended, events = cluster.finish(attempt)
    assert (ended.number, ended.outcome, result_of(ended.spec["output_path"])) == (1, AttemptOutcome.SUCCEEDED, 1), (
        cluster.log(ended)
    )
    assert names(events).count("preempted") == 1 and "failed" not in names(events)
    assert "This is preemption 1" in cluster.log(ended) and "(raylet)" not in cluster.log(ended)
