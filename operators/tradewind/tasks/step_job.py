"""The Ray job of one attempt: build it and submit it to the attempt's cluster."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.sdk import conf

from tradewind._version import __version__
from tradewind.attempts.spec_digest import driver_arguments
from tradewind.deployment.fleet import deployment_mirrors
from tradewind.deployment.ray_connection import RayHook
from tradewind.ray_jobs.dependencies import Environments
from tradewind.ray_jobs.errors import BadDependencyGroupError, ExposedSecretError
from tradewind.ray_jobs.request import JobRequest, check_request
from tradewind.ray_jobs.runtime_env import prepare_runtime_env
from tradewind.ray_jobs.worker_python import start_command
from tradewind.records.attempts import Attempt, attempt_path
from tradewind.serialization.job_start import JobStart, start_env
from tradewind.serialization.references import CodeFolder
from tradewind.serialization.spec import STEP_VARIABLE, StepSpec, step_spec
from tradewind.steps import AirflowWorker, Cpu, ExecutorStep, ResolvedStep
from tradewind.tasks.address import TaskKey
from tradewind.tasks.errors import translated_cluster_errors
from tradewind.tasks.jobs.exposed_secrets import check_spec, uv_options
from tradewind.tasks.jobs.following import retry_always, retry_for
from tradewind.tasks.jobs.placement import check_function_place, place_driver

if TYPE_CHECKING:
    from tradewind.ray_jobs.client import RayJobs
    from tradewind.ray_jobs.cluster import RayCluster
    from tradewind.ray_jobs.demand import Demand

T = TypeVar("T")

logger = logging.getLogger(__name__)

_DISTRIBUTION: Final = "airflow-provider-tradewind"
_DATASET_STEP: Final = "tradewind.datasets.pipeline_step:run_dataset_step"
_STORE_MODULES: Final = {"gs://": "gcsfs", "s3://": "s3fs"}
CONNECT_TIMEOUT_S = 20.0
"""How long an unresponsive cluster is retried before it costs one of Airflow's retries."""


def claimed_spec(step: ResolvedStep, code: Path, environments: Environments | None = None) -> StepSpec:
    """Return the spec of an attempt at ``step``, with its environment from the project's current lock.

    Args:
        step: The step of the attempt.
        code: The folder of the DAG's code.
        environments: Cached environments of ``code``, for many steps.

    Raises:
        SpecError: It cannot be serialized for a cluster, or a mirrored path is not below a prefix.
        BadRequestError: Its function does not fit its resources, its dependency groups do not exist, or it would expose
            a secret.
    """
    check_function_place(step.step)
    spec = step_spec(step, CodeFolder(code), deployment_mirrors() if step.mirrors else ())
    environment = _environment(step.step, environments or Environments(code))
    return check_spec(dataclasses.replace(spec, environment=environment))


def connect(step_name: str, cluster: str, *, has_job: bool = False) -> RayJobs:
    """Connect to ``cluster``; return once it answers and accepts the token.

    With ``has_job``, the task submitted a job before, and outages and refusals are waited out.

    Raises:
        ClusterUnreachableError: It does not answer.
        ClusterRefusedError: The connection is missing or invalid.
    """
    with translated_cluster_errors(f"Step {step_name!r}"):
        return _retried(RayHook(cluster).get_conn, has_job)


def check_cluster(step_name: str, cluster: str, *, has_job: bool) -> None:
    """Connect as ``connect``, and raise if no driver could start on ``cluster``.

    Raises:
        ClusterUnreachableError: It does not answer.
        ClusterRefusedError: The connection is missing or invalid, or the cluster's Python is too old.
    """
    jobs = connect(step_name, cluster, has_job=has_job)
    with translated_cluster_errors(f"Step {step_name!r}"):
        if RayHook(cluster).job_start().python is None:
            jobs.check_python()


def cluster_of_job(step_name: str, cluster: str, job: str) -> RayCluster | None:
    """Return ``cluster`` if it knows ``job``, once it answers and accepts the token.

    Raises:
        ClusterRefusedError: The connection is missing or invalid.
    """

    def find() -> RayCluster | None:
        jobs = RayHook(cluster).get_conn()
        return jobs.cluster if jobs.details(job) is not None else None

    with translated_cluster_errors(f"Step {step_name!r}"):
        return _retried(find, has_job=True)


def submit(attempt: Attempt, code: Path, *, has_job: bool = False) -> RayCluster:
    """Submit the job of ``attempt`` unless it already is; return the cluster that has it.

    With ``has_job``, the task submitted another job before, and outages and refusals are waited out.

    Raises:
        ClusterUnreachableError: The cluster does not answer.
        ClusterRefusedError: It refuses the job, or a field of the job is invalid.
    """
    spec = StepSpec.from_json(attempt.spec)
    with translated_cluster_errors(f"Step {spec.name!r}"):
        request = check_request(step_request(attempt, spec, code, RayHook(attempt.cluster).job_start()))

        def submit_request() -> RayCluster:
            jobs = RayHook(attempt.cluster).get_conn()
            jobs.submit_or_attach(request)
            return jobs.cluster

        return _retried(submit_request, has_job)


def _retried(call: Callable[[], T], has_job: bool) -> T:
    return retry_always(call, logger.warning) if has_job else retry_for(call, CONNECT_TIMEOUT_S, logger.warning)


def step_request(attempt: Attempt, spec: StepSpec, code: Path, start: JobStart | None = None) -> JobRequest:
    """Build the job of ``attempt``, which starts on its cluster as ``start`` says.

    Raises:
        BadRequestError: The code folder cannot travel.
    """
    runtime_env: dict[str, Any] = {**spec.environment, "env_vars": {STEP_VARIABLE: spec.version}}
    needed: list[str] = []
    if spec.code_travels:
        runtime_env["working_dir"] = str(code)
        needed = CodeFolder(code).files_of(spec.modules)
        if sources := CodeFolder(code).sources():
            runtime_env["env_vars"]["PYTHONPATH"] = ":".join(sources)  # relative: a job starts in its working directory
    file, by = attempt_path(spec.output_path, attempt.number), attempt.by
    task = TaskKey(by["dag"], by["run"], by["task"], by["map_index"], by["try"]).metadata() if "dag" in by else {}
    driver = shlex.join(["python", "-u", "-m", "tradewind.runtime.run_step", *driver_arguments(file, attempt)])
    runtime_env = start_env(runtime_env, start or JobStart(), modules_needed(spec))
    return JobRequest(
        submission_id=attempt.job,
        entrypoint=start_command(driver),
        runtime_env=prepare_runtime_env(runtime_env, needed),
        metadata={"step": spec.version, "output_path": spec.output_path, **task},
        **place_driver(spec.load_resources()).fields(),
    )


def modules_needed(spec: StepSpec) -> dict[str, str]:
    """Return the modules that a step needs and that do not travel, each with the package that installs it."""
    stores = [module for scheme, module in _STORE_MODULES.items() if spec.output_path.startswith(scheme)]
    needed = {module: module for module in ("fsspec", *stores)}
    fields = spec.config.get("fields", {}) if isinstance(spec.config, dict) else {}
    pipeline = fields.get("pipeline") if spec.function == _DATASET_STEP else None
    for function in (spec.function, pipeline["$object"] if isinstance(pipeline, dict) else ""):
        if function.startswith("tradewind."):  # imports nothing heavy
            recipe = dataclasses.replace(spec, function=function).load_function()
            imports = (*getattr(recipe, "needs", ()), *getattr(recipe, "warm_imports", ()))
            package = f"{_DISTRIBUTION}[{getattr(recipe, 'extra', 'train')}]=={__version__}"
            needed.update((name.partition(".")[0], package) for name in imports)
    return needed


def demand_of(job: str, step: ExecutorStep) -> Demand:
    """Return what a job of ``step`` requests of its node."""
    from tradewind.ray_jobs.demand import Demand  # its HTTP client would load with every DAG file

    return Demand.of(JobRequest(job, "", **place_driver(step.resources or Cpu()).fields()))


def _environment(step: ExecutorStep, environments: Environments) -> dict[str, Any]:
    groups = step.pip_dependency_groups or []
    if groups and isinstance(step.resources, AirflowWorker):
        raise BadDependencyGroupError(
            f"Step {step.name!r} has pip_dependency_groups and runs in the Airflow worker, whose environment is fixed. "
            "Run it on a cluster, for example with resources=Cpu()."
        )
    try:
        options = uv_options(conf.get("tradewind", "uv_options", fallback=None) or "")
        return environments.of(groups, options)
    except (BadDependencyGroupError, ExposedSecretError) as error:
        raise type(error)(f"Step {step.name!r}: {error}") from error
