"""On a real head without an index, a job gets the lock's versions and the next job reuses them.

The head runs in a nearly empty virtual environment and borrows other packages from the tests' environment, because
Ray copies the head's whole environment for each environment that it builds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.ended_jobs import ended_job
from tests.ray_jobs.tiny_wheels import write_lock, write_wheel
from tests.support.claims import claimed
from tradewind import Cpu, ExecutorStep, experiment_dag, remote, this_output_path
from tradewind.ray_jobs.client import RayJobs
from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.dependencies import environment_of
from tradewind.ray_jobs.errors import BadDependencyGroupError, BadRequestError
from tradewind.ray_jobs.request import JobRequest, check_request
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.rehearsal.local.processes import LocalStack
from tradewind.rehearsal.local.ray import LocalRay
from tradewind.steps import on_airflow_worker, resolve
from tradewind.storage.files import read_text
from tradewind.tasks.step_job import claimed_spec, submit

PYPROJECT = """
[project]
name = "talking"
version = "0.1"
requires-python = ">=3.11"

[project.optional-dependencies]
speak = ["speaker<2"]
loud = ["speaker<2", "shout"]

[tool.uv]
package = false
"""

STEP_MODULE = """
def say(config):
    import speaker, voice, sys
    return {"speaker": speaker.__version__, "voice": voice.__version__}
"""

SAY = """python -c 'import speaker, voice, sys; print("found:", speaker.__version__, voice.__version__, sys.prefix)'"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        write_wheel(folder, "speaker", version, requires=["voice"])
    for name in ("voice", "shout"):
        write_wheel(folder, name, "0.3")
    return folder


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Path:
    project = tmp_path_factory.mktemp("project")
    (project / "dags").mkdir()
    (project / "dags" / "talking_steps.py").write_text(STEP_MODULE)
    (project / "pyproject.toml").write_text(PYPROJECT)
    write_lock(project, wheels)
    return project / "dags"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayJobs]:
    root = tmp_path_factory.mktemp("ray")
    stack = LocalStack(root)
    python = nearly_empty_environment(root / "thin")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(python))  # the cluster starts with this interpreter's Ray
            ray = LocalRay(stack, token="", num_cpus=2, env={"HTTPS_PROXY": "http://127.0.0.1:9"})  # no network
            ray.start()
        yield RayJobs(RayCluster("here", ray.address))
    finally:
        stack.stop()


def nearly_empty_environment(folder: Path) -> Path:
    """Make a virtual environment that sees the packages of this one; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    paths = [path for path in sys.path if Path(path).is_dir() and not Path(path).is_relative_to(sys.base_prefix)]
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "borrowed.pth").write_text("\n".join(paths) + "\n")
    script = folder / "bin" / "ray"
    script.write_text(f"#!{python}\nimport sys\nfrom ray.scripts.scripts import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return python


def run(jobs: RayJobs, job: str, code: Path, wheels: Path, groups: list[str]) -> list[str]:
    environment = environment_of(groups, code, ["--no-index", "--find-links", str(wheels)])
    jobs.submit_or_attach(check_request(JobRequest(job, SAY, prepare_runtime_env(environment))))
    status, lines = ended_job(jobs, job)
    assert status == "SUCCEEDED", "\n".join(lines)
    # Not the last line: Ray may write its own line about the entrypoint after it.
    return next(line.split()[1:] for line in lines if line.startswith("found:"))


@pytest.mark.ray
def test_job_gets_locked_versions_and_next_job_same_environment(jobs: RayJobs, code: Path, wheels: Path) -> None:
    speaker, voice, first = run(jobs, "first", code, wheels, ["speak"])
    assert (speaker, voice) == ("1.0", "0.3")
    assert first != str(Path(sys.prefix)) and "runtime_resources/uv" in first
    built = os.stat(Path(first) / "pyvenv.cfg")
    *_, second = run(jobs, "second", code, wheels, ["speak"])
    assert second == first
    assert os.stat(Path(second) / "pyvenv.cfg") == built  # the second job reuses it
    *_, other = run(jobs, "other", code, wheels, ["loud"])
    assert other != first


@pytest.mark.ray
def test_unbuildable_dependency_group_ends_job_with_reason(jobs: RayJobs, code: Path) -> None:
    environment = environment_of(["missing==3"], code, ["--no-index"])
    jobs.submit_or_attach(JobRequest("unbuildable", SAY, prepare_runtime_env(environment)))
    status, lines = ended_job(jobs, "unbuildable")
    assert status == "FAILED"
    assert "missing==3" in "\n".join(lines)


@dataclass(frozen=True)
class Config:
    output_path: Any


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, wheels: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__TRADEWIND__UV_OPTIONS", f"--no-index --find-links '{wheels}'")


@pytest.mark.ray
@pytest.mark.usefixtures("options")
def test_a_step_runs_in_the_environment_of_its_groups(
    jobs: RayJobs, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(code)
    import talking_steps  # type: ignore[import-not-found]

    step = ExecutorStep(
        "talk/say", talking_steps.say, Config(this_output_path()), resources=Cpu(0.5), pip_dependency_groups=["speak"]
    )
    resolved = resolve([step], str(tmp_path / "store")).of(step)
    spec = claimed_spec(resolved, code)
    assert spec.environment["uv"]["packages"] == ["speaker==1.0", "voice==0.3"]
    attempt = claimed(resolved, spec, job="talk-say-1", cluster="here")
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "ray", "host": jobs.cluster.address}))
    for _ in range(2):  # the second call joins the job of the first
        assert submit(attempt, code).address == jobs.cluster.address
    status, lines = ended_job(jobs, "talk-say-1")
    assert status == "SUCCEEDED", "\n".join(lines)
    assert json.loads(read_text(f"{resolved.output_path}/.artifact.json") or "") == {"speaker": "1.0", "voice": "0.3"}


def nothing(config: Any) -> None: ...


def refused(step: ExecutorStep, code: Path, tmp_path: Path) -> Exception:
    with pytest.raises(ValueError) as caught:
        claimed_spec(resolve([step], str(tmp_path)).of(step), code)
    assert str(caught.value).startswith(f"Step {step.name!r}")
    return caught.value


@pytest.mark.usefixtures("options")
def test_step_with_known_mistake_is_refused_before_claim(code: Path, tmp_path: Path) -> None:
    unknown = ExecutorStep("a", nothing, {}, pip_dependency_groups=["speek"])
    assert "there are loud, speak" in str(refused(unknown, code, tmp_path))
    in_worker = ExecutorStep("b", nothing, {}, pip_dependency_groups=["speak"], resources=on_airflow_worker())
    assert isinstance(refused(in_worker, code, tmp_path), BadDependencyGroupError)
    on_cpus = ExecutorStep("c", remote(resources={"TPU": 4})(nothing), {})
    assert isinstance(refused(on_cpus, code, tmp_path), BadRequestError)
    with pytest.raises(BadRequestError, match="Step 'c'"):
        experiment_dag("refused", [on_cpus])  # already when the DAG is parsed
