"""The Ray job of one attempt: what it runs, and handing it to the attempt's cluster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tradewind.hooks.ray import RayHook
from tradewind.operators.errors import ClusterRefusedError, ClusterUnreachableError
from tradewind.ray_jobs.errors import RayJobsError, RayUnreachableError
from tradewind.records.attempts import Attempt, attempt_path
from tradewind.runtime.environment import STEP_VARIABLE
from tradewind.runtime.spec import StepSpec
from tradewind.steps import Cpu

if TYPE_CHECKING:
    from tradewind.ray_jobs.client import RayJobs

DRIVER_CPUS_ON_SLICE = 0.0
"""What the driver of a step on a slice asks for: it only watches, the hosts of the slice do the work."""


def connect(step_name: str, cluster: str) -> RayJobs:
    """The jobs of ``cluster``, which has answered and accepted the token.

    Raises:
        ClusterUnreachableError: It does not answer.
        ClusterRefusedError: There is no such connection, or it is no good.
    """
    with _naming(step_name):
        return RayHook(cluster).get_conn()


def submit(jobs: RayJobs, attempt: Attempt, code: Path) -> bool:
    """Submit the job of ``attempt`` unless that was done before; whether it was submitted now.

    Raises:
        ClusterUnreachableError: The cluster does not answer.
        ClusterRefusedError: It refuses the job.
    """
    from tradewind.ray_jobs.request import JobRequest

    spec = StepSpec.from_json(attempt.spec)
    resources = spec.load_resources()
    file = attempt_path(spec.output_path, attempt.number)
    runtime_env: dict[str, Any] = {"env_vars": {STEP_VARIABLE: spec.version}}
    if spec.code_travels:
        runtime_env["working_dir"] = str(code)
    request = JobRequest(
        submission_id=attempt.job,
        entrypoint=f"python -u -m tradewind.runtime.run_step {shlex.quote(file)}",
        runtime_env=runtime_env,
        metadata={"step": spec.version, "output_path": spec.output_path},
        num_cpus=resources.num_cpus if isinstance(resources, Cpu) else DRIVER_CPUS_ON_SLICE,
        memory_bytes=resources.memory_bytes if isinstance(resources, Cpu) else None,
    )
    with _naming(spec.name):
        return jobs.submit_or_attach(request)


@contextmanager
def _naming(step_name: str) -> Iterator[None]:
    """Say in an error of the cluster which step it is about."""
    try:
        yield
    except RayUnreachableError as error:
        raise ClusterUnreachableError(f"Step {step_name!r}: {error}") from error
    except RayJobsError as error:
        raise ClusterRefusedError(f"Step {step_name!r}: {error}") from error
