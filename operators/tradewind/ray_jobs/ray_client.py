"""Submission through Ray's own client, which packs and uploads folders. Importing it imports Ray."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
import requests
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from tradewind.ray_jobs.cluster import RayCluster
from tradewind.ray_jobs.errors import RayAuthenticationError, token_refused

_ray_logger = logging.getLogger("ray")
_ray_logger.handlers.clear()  # Ray writes to stderr, which task logs show as errors; Airflow's logging takes over
_ray_logger.propagate = True


for _name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # else each upload logs three lines
# Ray warns about changed defaults at each upload of a folder with a __pycache__.
logging.getLogger("ray._private.runtime_env.working_dir").addFilter(
    lambda record: "is now ignored by default" not in record.getMessage()
)


def submit_with_packages(cluster: RayCluster, fields: Mapping[str, Any], timeout_s: float) -> None:
    """Submit a job whose runtime environment names local folders, or has fields that Ray must convert.

    Raises:
        RayAuthenticationError: The cluster refuses the token.
        RuntimeError: The cluster refuses the job, or Ray does.
    """
    try:
        _DirectClient(cluster, timeout_s).submit_job(**fields)
    except AuthenticationError:
        raise RayAuthenticationError(token_refused(cluster)) from None


class _DirectClient(JobSubmissionClient):
    """Ray's client for exactly the given address, regardless of ``RAY_ADDRESS``."""

    def __init__(self, cluster: RayCluster, timeout_s: float) -> None:
        self._client_ray_version = ray.__version__
        self._timeout_s = timeout_s
        SubmissionClient.__init__(self, address=cluster.address, headers=cluster.headers, verify=cluster.verify)

    def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> requests.Response:
        kwargs.setdefault("timeout", self._timeout_s)
        kwargs.setdefault("auth", lambda request: request)  # else a .netrc would replace the token
        return super()._do_request(method, endpoint, **{**kwargs, "allow_redirects": False})
