"""Submitting to a cluster, exactly once per id, and asking for jobs. Blocking; for workers and scripts.

Importing this module imports Ray, so it is imported where a task runs, not where a DAG file is parsed.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
import requests
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.details import JobDetails
from tradewind.ray_jobs.errors import (
    RayAuthenticationError,
    RayJobRefusedError,
    RayUnreachableError,
    token_refused,
    unreachable,
)
from tradewind.ray_jobs.request import JobRequest

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
                    entrypoint_num_gpus=job.num_gpus,
                    entrypoint_memory=job.memory_bytes,
                    entrypoint_resources=dict(job.resources) if job.resources else None,
                    entrypoint_label_selector=dict(job.label_selector) if job.label_selector else None,
                )
            )
        except RuntimeError as error:
            if f"Job with submission_id {job.submission_id} already exists" in str(error):
                return False
            raise RayJobRefusedError(f"{self.cluster} refuses job {job.submission_id!r}: {error}") from error
        return True

    def details(self, job: str) -> JobDetails | None:
        """The job, or None when the cluster knows none of this id."""
        response = self._asking(lambda: self._client._do_request("GET", f"/api/jobs/{job}"))
        if response.status_code == 404:
            return None
        self._check(response)
        return JobDetails.from_json(response.json())

    def jobs(self) -> list[JobDetails]:
        """Every job that was submitted to the cluster, ended ones included."""
        response = self._asking(lambda: self._client._do_request("GET", "/api/jobs/"))
        self._check(response)
        return [JobDetails.from_json(fields) for fields in response.json() if fields.get("submission_id")]

    def version(self) -> str:
        """The cluster's Ray version."""
        return str(self._asking(lambda: self._client._do_request("GET", "/api/version")).json()["ray_version"])

    def _asking(self, call: Any) -> Any:
        try:
            return call()
        except AuthenticationError as error:
            raise RayAuthenticationError(token_refused(self.cluster)) from error
        except (ConnectionError, requests.RequestException) as error:
            raise RayUnreachableError(unreachable(self.cluster, error)) from error

    def _check(self, response: requests.Response) -> None:
        if not response.ok:
            raise RayUnreachableError(f"{self.cluster} answered {response.status_code} to {response.url}.")


class _DirectClient(JobSubmissionClient):
    """Ray's client for exactly the given address: the environment (``RAY_ADDRESS``) does not redirect it."""

    def __init__(self, cluster: RayCluster) -> None:
        self._client_ray_version = ray.__version__
        SubmissionClient.__init__(self, address=cluster.address, headers=cluster.headers, verify=cluster.verify)
        self._check_connection_and_version("2.0", f"{cluster} runs a Ray that is too old for the Jobs API.")

    def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> requests.Response:
        kwargs.setdefault("timeout", REQUEST_TIMEOUT_S)
        return super()._do_request(method, endpoint, **kwargs)
