"""Submitting to a cluster, exactly once per id, and asking for jobs. Blocking; for workers and scripts.

Importing this module imports Ray, so it is imported where a task runs, not where a DAG file is parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
import requests
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError, RayJobRefusedError, RayUnreachableError

REQUEST_TIMEOUT_S = 60

_ray_logger = logging.getLogger("ray")
_ray_logger.handlers.clear()  # Ray writes to stderr, which a task's log shows as errors; let Airflow's logging have it
_ray_logger.propagate = True


for _name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # or each upload takes three lines
# Says at each upload of a folder with a __pycache__ that the defaults of Ray have changed.
logging.getLogger("ray._private.runtime_env.working_dir").addFilter(
    lambda record: "is now ignored by default" not in record.getMessage()
)


@dataclass(frozen=True)
class JobRequest:
    """A job to submit under an id of our own; fields are those of Ray's Jobs API."""

    submission_id: str
    entrypoint: str
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    memory_bytes: int | None = None


class RayJobs:
    """The jobs of one cluster.

    Raises:
        RayUnreachableError: The cluster does not answer.
        RayAuthenticationError: It refuses the token.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self.cluster = cluster
        self._client = self._asking(lambda: _DirectClient(cluster))

    def submit_or_attach(self, job: JobRequest) -> bool:
        """Submit ``job`` unless its id is taken, which means that it was submitted before; whether it was submitted.

        Raises:
            RayJobRefusedError: The cluster refuses the job.
        """
        try:
            self._asking(
                lambda: self._client.submit_job(
                    entrypoint=job.entrypoint,
                    submission_id=job.submission_id,
                    runtime_env=dict(job.runtime_env),
                    metadata=dict(job.metadata),
                    entrypoint_num_cpus=job.num_cpus,
                    entrypoint_memory=job.memory_bytes,
                )
            )
        except RuntimeError as error:
            if f"Job with submission_id {job.submission_id} already exists" in str(error):
                return False
            raise RayJobRefusedError(f"{self.cluster} refuses job {job.submission_id!r}: {error}") from error
        return True

    def status(self, job: str) -> str | None:
        """The job's Ray status (``PENDING``, ``RUNNING``…), or None when the cluster has no such job."""
        try:
            return str(self._asking(lambda: self._client.get_job_status(job)).value)
        except RuntimeError as error:
            if "404" in str(error):
                return None
            raise

    def version(self) -> str:
        """The cluster's Ray version."""
        return str(self._asking(lambda: self._client._do_request("GET", "/api/version")).json()["ray_version"])

    def _asking(self, call: Any) -> Any:
        try:
            return call()
        except AuthenticationError as error:
            raise RayAuthenticationError(
                f"{self.cluster} refuses the token: put the right one into the password field of connection "
                f"{self.cluster.name!r}."
            ) from error
        except (ConnectionError, requests.RequestException) as error:
            raise RayUnreachableError(
                f"{self.cluster} does not answer ({type(error).__name__}): start the cluster, or correct the host of "
                f"connection {self.cluster.name!r}."
            ) from error


class _DirectClient(JobSubmissionClient):
    """Ray's client for exactly the given address: the environment (``RAY_ADDRESS``) does not redirect it."""

    def __init__(self, cluster: RayCluster) -> None:
        self._client_ray_version = ray.__version__
        SubmissionClient.__init__(self, address=cluster.address, headers=cluster.headers, verify=cluster.verify)
        self._check_connection_and_version("2.0", f"{cluster} runs a Ray that is too old for the Jobs API.")

    def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> requests.Response:
        kwargs.setdefault("timeout", REQUEST_TIMEOUT_S)
        return super()._do_request(method, endpoint, **kwargs)
