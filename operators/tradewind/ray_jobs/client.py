"""Blocking client for workers and scripts: submit exactly once per ID, and query jobs.

It imports Ray, which takes seconds, only for a job that brings files or an environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests

from tradewind.ray_jobs.cluster import RayCluster, job_path
from tradewind.ray_jobs.details import JobDetails, submitted_jobs
from tradewind.ray_jobs.errors import (
    RayAuthenticationError,
    RayJobRefusedError,
    RayTlsError,
    RayUnreachableError,
    RayVersionError,
    check_redirect,
    token_refused,
    unreachable,
)
from tradewind.ray_jobs.job_backup import LABEL_SELECTOR
from tradewind.ray_jobs.probe import python_version_in, tls_problem, version_in
from tradewind.ray_jobs.request import JobRequest
from tradewind.ray_jobs.worker_python import has_version_of_ray

REQUEST_TIMEOUT_S = 60
OLDEST_RAY = "2.30"
OLDEST_PYTHON = "3.11"
PLAIN_FIELDS = frozenset({"env_vars"})
"""Fields of a runtime environment that go to the cluster unchanged."""
_CONTAINERS = ("image_uri", "container")
_INSTALLERS = ("pip", "uv", "conda")
_INSTALLER_PREFIXES = ("PIP_", "UV_", "CONDA_")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
_TLS_TIMEOUT_S = 5.0
_Response = TypeVar("_Response")


class RayJobs:
    """Jobs of one cluster.

    Args:
        cluster: The cluster.
        oldest_ray: First version of Ray, as ``major.minor``, that the cluster may run.

    Raises:
        RayUnreachableError: The cluster does not answer. It says nothing about any job.
        RayAuthenticationError: The cluster refuses the token.
        RayTlsError: The two sides do not agree on TLS.
        RayVersionError: The cluster's Ray is too old.
    """

    def __init__(self, cluster: RayCluster, *, oldest_ray: str = OLDEST_RAY) -> None:
        self.cluster = cluster
        self._session = requests.Session()
        self._check_ca_bundle()
        found = self.version()
        if _minor(found) < _minor(oldest_ray):
            raise RayVersionError(
                f"{cluster} runs Ray {found}, which is too old: update the cluster to Ray {oldest_ray} or newer."
            )

    def submit_or_attach(self, job: JobRequest) -> bool:
        """Submit ``job`` unless its ID was submitted before; return whether it was submitted.

        Raises:
            RayJobRefusedError: The cluster refuses the job, or Ray's client does.
            RayVersionError: The job starts Tradewind in the cluster's Python, which is too old.
        """
        if has_version_of_ray(job.entrypoint, job.runtime_env):
            self.check_python()
        return self._submit_once(job.submission_id, lambda: self._submit(job))

    def resubmit(self, fields: Mapping[str, Any]) -> bool:
        """Submit a job given as fields of the Jobs API, whose packages are on the cluster, in the same way.

        Returns and raises the same as ``submit_or_attach``.
        """
        return self._submit_once(fields["submission_id"], lambda: self._post(fields))

    def has_package(self, uri: str) -> bool:
        """Return whether the cluster has the package at ``gcs://``; it then keeps it for at least ten minutes."""
        response = self._request("GET", _package_path(uri))
        if response.ok or response.status_code == 404:
            return response.ok
        raise RayUnreachableError(f"{self.cluster} answered {response.status_code} to GET {_package_path(uri)}.")

    def put_package(self, uri: str, file: Path) -> None:
        """Upload the package in ``file``.

        Raises:
            OSError: The file cannot be read.
        """
        with file.open("rb") as opened:
            response = self._request("PUT", _package_path(uri), data=opened)
        if not response.ok:
            raise RayUnreachableError(f"{self.cluster} refuses package {uri}: {_last_line(response.text)}")

    def details(self, job: str) -> JobDetails | None:
        """Return the job, or None if the cluster knows no job with this ID."""
        answer = self._get(job_path(job))
        return None if answer is None else JobDetails.from_json(answer, self.cluster)

    def jobs(self) -> list[JobDetails]:
        """Return every job that was submitted to the cluster, ended ones included."""
        return submitted_jobs(self._get("/api/jobs/"), self.cluster)

    def log_text(self, job: str) -> str | None:
        """Return the job's whole log so far, or None if the cluster does not know the job."""
        answer = self._get(f"{job_path(job)}/logs")
        if answer is not None and not (isinstance(answer, dict) and isinstance(answer.get("logs"), str)):
            raise RayUnreachableError(f"{self.cluster} answered no log to GET {job_path(job)}/logs.")
        return None if answer is None else str(answer["logs"])

    def version(self) -> str:
        """Return the cluster's Ray version."""
        if (version := version_in(self._get("/api/version"))) is None:
            raise RayUnreachableError(f"{self.cluster} answers, but not as a Ray dashboard does: correct its address.")
        return version

    def check_python(self) -> None:
        """Raise if the cluster's Python is too old for this package; a job on a node checks that node's again.

        Raises:
            RayVersionError: It says that it is.
        """
        with contextlib.suppress(RayUnreachableError, RayAuthenticationError):  # submitting reports them
            found = python_version_in(self._get("/api/v0/cluster_metadata"))
            if found is not None and _minor(found) < _minor(OLDEST_PYTHON):
                raise RayVersionError(
                    f"{self.cluster} runs Python {found}, and Tradewind needs {OLDEST_PYTHON}: start Ray with that or "
                    f"newer, or name one as 'python' of connection {self.cluster.name!r}."
                )

    def _submit_once(self, job: str, submit: Callable[[], None]) -> bool:
        try:
            submit()
        except (RuntimeError, ValueError, TypeError) as error:
            text = str(error)
            if f"Job with submission_id {job} already exists" in text:
                return False
            if "No available agent" in text or "TimeoutError" in text or "status code 503" in text:
                raise RayUnreachableError(
                    f"{self.cluster} answers, but is not ready for jobs ({_last_line(text)}): try again later."
                ) from None
            raise RayJobRefusedError(f"{self.cluster} refuses job {job!r}: {_last_line(text)}") from None
        return True

    def _submit(self, job: JobRequest) -> None:
        labels = {LABEL_SELECTOR: json.dumps(dict(job.label_selector))} if job.label_selector else {}
        fields = {
            "entrypoint": job.entrypoint,
            "submission_id": job.submission_id,
            "runtime_env": unexpanded_env(job.runtime_env),
            "metadata": {**job.metadata, **labels},
            "entrypoint_num_cpus": job.num_cpus,
            "entrypoint_num_gpus": job.num_gpus,
            "entrypoint_memory": job.memory_bytes,
            "entrypoint_resources": dict(job.resources) if job.resources else None,
            "entrypoint_label_selector": dict(job.label_selector) if job.label_selector else None,
        }
        if job.runtime_env.keys() <= PLAIN_FIELDS:
            return self._post(fields)
        from tradewind.ray_jobs.ray_client import submit_with_packages

        self._call(lambda: submit_with_packages(self.cluster, fields, REQUEST_TIMEOUT_S))

    def _post(self, fields: Mapping[str, Any]) -> None:
        response = self._request("POST", "/api/jobs/", json=fields)
        if not response.ok:
            raise RuntimeError(f"status code {response.status_code}: {response.text}")

    def _request(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Send one request. Return every response but a refusal of the token and a redirect, which raise."""
        response = self._call(
            lambda: self._session.request(
                method,
                self.cluster.address.rstrip("/") + path,
                headers=self.cluster.headers,
                verify=self.cluster.verify,  # with each request: a session's setting yields to REQUESTS_CA_BUNDLE
                auth=lambda request: request,  # else a .netrc would replace the token
                allow_redirects=False,
                timeout=REQUEST_TIMEOUT_S,
                **kwargs,
            )
        )
        if response.status_code in (401, 403):
            raise RayAuthenticationError(token_refused(self.cluster))
        check_redirect(self.cluster, response.status_code, response.headers)
        return response

    def _get(self, path: str) -> Any:
        """Return the JSON response to a GET, or None for a 404."""
        response = self._request("GET", path)
        if response.status_code == 404:
            return None
        try:
            if response.ok:
                return response.json()
        except (ValueError, RecursionError):
            raise RayUnreachableError(f"{self.cluster} answered no JSON to GET {path}: correct its address.") from None
        self._check_scheme()
        raise RayUnreachableError(f"{self.cluster} answered {response.status_code} to GET {path}.")

    def _call(self, call: Callable[[], _Response]) -> _Response:
        """Return the result, or raise a ``RayJobsError`` without its cause: some causes hold the token."""
        try:
            return call()
        except requests.exceptions.SSLError as error:
            raise RayTlsError(f"{self.cluster}: {tls_problem(error)}") from None
        except (ConnectionError, requests.RequestException) as error:
            self._check_scheme()
            raise RayUnreachableError(unreachable(self.cluster, error)) from None

    def _check_ca_bundle(self) -> None:
        bundle = self.cluster.verify
        try:
            if isinstance(bundle, str):
                if not os.path.isfile(bundle):  # a named pipe would be waited for
                    raise FileNotFoundError(bundle)
                ssl.create_default_context(cafile=bundle)
        except OSError:  # includes SSLError
            raise RayTlsError(
                f"{self.cluster}: CA bundle {bundle!r} cannot be read: correct the 'CA bundle' of the connection."
            ) from None

    def _check_scheme(self) -> None:
        """Raise if the server expects TLS: such a server only closes plain HTTP connections."""
        parts = urlsplit(self.cluster.address)
        if parts.scheme == "http" and _speaks_tls(parts.hostname or "", parts.port or 80):
            raise RayTlsError(
                f"{self.cluster} speaks TLS: write https:// instead of http:// in the host of connection "
                f"{self.cluster.name!r}."
            ) from None


def unexpanded_env(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment with values that reach the job as given.

    Ray replaces ``$NAME`` and ``${NAME}`` in each value of ``env_vars``, and then removes each ``${NAME}`` that it did
    not replace, in one pass (``ray._private.utils.update_envs``). So behind each dollar it removes ``${0}``, which is
    no name of a variable.

    Containers and installers of packages get the values without that pass. So values for a container stay, and those of
    variables that an installer reads: by their name, or since its packages or options refer to them.
    """
    given = runtime_env.get("env_vars")
    if not given or any(runtime_env.get(field) for field in _CONTAINERS):
        return dict(runtime_env)
    installers = [runtime_env[field] for field in _INSTALLERS if runtime_env.get(field)]
    read = {found[1] or found[2] for found in _REFERENCE.finditer(json.dumps(installers, default=str))}
    prefixes = _INSTALLER_PREFIXES if installers else ()
    escaped = {
        name: value if name in read or name.startswith(prefixes) else value.replace("$", "$${0}")
        for name, value in given.items()
    }
    return {**runtime_env, "env_vars": escaped}


def _package_path(uri: str) -> str:
    return f"/api/packages/{uri.replace('://', '/')}"


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_TLS_TIMEOUT_S) as plain:
        context.wrap_socket(plain, server_hostname=host).close()
        return True
    return False


def _minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _last_line(text: str) -> str:
    """Return the last line of a response: Ray puts its own tracebacks before the message."""
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip(" .'\"")]
    return lines[-1] if lines else "no reason given"
