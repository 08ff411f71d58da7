"""Checks of Google Cloud, this machine and running clusters, each with its result and a fix.

Google Cloud: permissions, bucket, token and secrets, roles, clock. This machine: programs, versions, keys. Running
clusters: their Ray version, which must be the same on both sides of Ray's clients.
"""

from __future__ import annotations

import json
import platform
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from tradewind.fleet.access.connect import connected
from tradewind.fleet.cloud.google_api import CloudDeniedError, CloudError, execute_request, google_api, readable_answer
from tradewind.fleet.cloud.heads import NoHeadError
from tradewind.fleet.cloud.token_secret import TokenSecret
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.local_paths import BadPathError, expanded
from tradewind.ray_jobs.errors import RayJobsError
from tradewind.ray_jobs.probe import check_connection


class Health(StrEnum):
    """Result of a check."""

    WELL = "ok"
    WRONG = "WRONG"
    UNKNOWN = "unknown"
    """The check was not possible."""


@dataclass(frozen=True)
class Diagnosis:
    """Result of one check.

    Attributes:
        about: Subject of the check, for example a program or a bucket.
        found: The state that was found.
        mend: The fix, as a sentence; empty if nothing is wrong.
    """

    about: str
    health: Health
    found: str
    mend: str = ""


def well(about: str, found: str) -> Diagnosis:
    """Return the diagnosis of a subject in order."""
    return Diagnosis(about, Health.WELL, found)


def wrong(about: str, found: str, mend: str) -> Diagnosis:
    """Return the diagnosis of a subject that needs a fix."""
    return Diagnosis(about, Health.WRONG, found, mend)


def unknown(about: str, why: str, mend: str = "") -> Diagnosis:
    """Return the diagnosis of a subject that could not be checked."""
    return Diagnosis(about, Health.UNKNOWN, why, mend)


SECRET_ROLE: Final = "roles/secretmanager.secretAccessor"
IMAGE_ROLE: Final = "roles/artifactregistry.reader"
LIST_ROLE: Final = "roles/compute.viewer"
"""Role of hosts that look for their cluster's head."""
_INCLUDED_IN: Final = {
    SECRET_ROLE: {SECRET_ROLE, "roles/secretmanager.admin", "roles/owner"},
    IMAGE_ROLE: {
        IMAGE_ROLE, "roles/artifactregistry.writer", "roles/artifactregistry.repoAdmin", "roles/artifactregistry.admin",
        "roles/viewer", "roles/editor", "roles/owner",
    },
    LIST_ROLE: {
        LIST_ROLE, "roles/compute.instanceAdmin", "roles/compute.instanceAdmin.v1", "roles/compute.admin",
        "roles/viewer", "roles/editor", "roles/owner",
    },
}  # fmt: skip
"""Role → the roles that include what the fleet needs of it."""


def grant_diagnoses(cluster: FleetCluster, projects: Any, secrets: Any, registry: Any) -> Iterator[Diagnosis]:
    """Check that head and slices of ``cluster`` may read its secrets and image, and manual slices find the head."""
    project = f"projects/{cluster.project}"
    named = {cluster.token_secret, *cluster.environment.values()}
    for account in sorted({cluster.head_service_account, cluster.worker_service_account}):
        for secret in sorted(named):
            path = f"{project}/secrets/{secret}"
            own = secrets.projects().secrets().getIamPolicy(resource=path)
            yield _finding(account, SECRET_ROLE, cluster.project, projects, f"secret {secret}", own)
        if cluster.registry.endswith("-docker.pkg.dev") and "/" not in cluster.image:
            path = f"{project}/locations/{cluster.region}/repositories/{cluster.repository}"
            own = registry.projects().locations().repositories().getIamPolicy(resource=path)
            about = f"repository {cluster.repository} in {cluster.region}"
            yield _finding(account, IMAGE_ROLE, cluster.project, projects, about, own)
    worker, about = cluster.worker_service_account, "finding the head, from manual slices"
    yield _finding(worker, LIST_ROLE, cluster.project, projects, about)


def _finding(account: str, role: str, project: str, projects: Any, thing: str, own: Any = None) -> Diagnosis:
    """Check that ``account`` has ``role``; ``own`` requests the policy of ``thing``, if it has its own."""
    about, member = f"{account}: {thing}", f"serviceAccount:{account}"
    of_project = projects.projects().getIamPolicy(resource=f"projects/{project}", body={})
    places = [(f"project {project}", of_project), *([(thing, own)] if own is not None else [])]
    problems = []
    for place, request in places:
        try:
            what = f"The policy of {place}"
            found = execute_request(request, what).get("bindings", [])
            with readable_answer(what):
                held = [one for one in found if member in one.get("members", []) and not one.get("condition")]
                granted = {str(one["role"]) for one in held}
            if enough := granted & _INCLUDED_IN[role]:
                return well(about, f"{min(enough)} on {place}")
        except CloudError as error:
            problems.append(str(error))
    mend = f"gcloud projects add-iam-policy-binding {project} --member={member} --role={role}"
    if problems:
        return unknown(about, problems[0], f"Ask who may see it, for {role}.")
    return wrong(about, f"it has not {role}", mend)


PERMISSIONS: Final = (
    "compute.instances.list", "compute.instances.create", "compute.instances.delete", "compute.instances.setLabels",
    "compute.instances.setMetadata", "compute.instances.getGuestAttributes", "compute.disks.create",
    "compute.disks.use", "compute.subnetworks.use", "tpu.nodes.list", "tpu.nodes.create", "tpu.nodes.delete",
    "iam.serviceAccounts.actAs", "secretmanager.versions.access",
)  # fmt: skip
"""Permissions of users who start and stop clusters."""
_ROLES: Final = (
    "roles/compute.instanceAdmin.v1, roles/tpu.admin, roles/iam.serviceAccountUser and "
    "roles/secretmanager.secretAccessor"
)
_MAX_SKEW_S: Final = 30.0
_TIMEOUT_S: Final = 60.0
_CREDENTIALS: Final = "credentials"
_SDK: Final = "Google Cloud SDK"


def cloud_diagnoses(clusters: Iterable[FleetCluster], *, now: Callable[[], float] = time.time) -> Iterator[Diagnosis]:
    """Check what ``clusters`` need of Google Cloud, without changes."""
    chosen = list(clusters)
    try:
        projects, secrets, registry = map(google_api, ("cloudresourcemanager", "secretmanager", "artifactregistry"))
    except CloudDeniedError as error:
        yield wrong(_CREDENTIALS, "none", str(error))
        return
    yield well(_CREDENTIALS, "found")
    yield _clocks(projects, now)
    for project in sorted({cluster.project for cluster in chosen}):
        yield _permissions(project, projects)
    for bucket, region in sorted({(cluster.bucket, cluster.region) for cluster in chosen}):
        yield _bucket(bucket, region)
    for project, secret in sorted({(each.project, each.token_secret) for each in chosen}):
        yield _secret(project, secret, secrets, is_token=True)
    for project, secret in sorted({(each.project, name) for each in chosen for name in each.environment.values()}):
        yield _secret(project, secret, secrets, is_token=False)
    yield from dict.fromkeys(
        diagnosis for cluster in chosen for diagnosis in grant_diagnoses(cluster, projects, secrets, registry)
    )


def _permissions(project: str, projects: Any) -> Diagnosis:
    about = f"your permissions in {project}"
    request = projects.projects().testIamPermissions(
        resource=f"projects/{project}", body={"permissions": list(PERMISSIONS)}
    )
    try:
        found = execute_request(request, about).get("permissions", [])
        with readable_answer(about):
            granted = set(map(str, found))
    except CloudError as error:
        return unknown(about, str(error).removeprefix(f"{about}: "))
    if missing := [name for name in PERMISSIONS if name not in granted]:
        return wrong(about, f"missing: {', '.join(missing)}", f"Ask an owner of the project for {_ROLES}.")
    return well(about, f"all {len(PERMISSIONS)} that are needed")


def _bucket(bucket: str, region: str) -> Diagnosis:
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound
    from google.auth.exceptions import GoogleAuthError
    from requests import RequestException

    from tradewind.storage.bucket_regions import bucket_region

    about = f"bucket {bucket}"
    try:
        found = bucket_region(bucket, timeout=20.0)
    except NotFound:
        mend = f"gcloud storage buckets create gs://{bucket} --location={region}"
        return wrong(about, "there is none", mend)
    except Forbidden:
        return wrong(about, "access is denied", "Ask for roles/storage.objectAdmin and storage.buckets.get on it.")
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        return unknown(about, f"Cloud Storage does not say ({type(error).__name__})")
    if found is not None and region not in found.split("+"):
        return wrong(about, f"it is in {found}, and the cluster in {region}", "Name a bucket of the cluster's region.")
    return well(about, f"in {found}")


def _secret(project: str, name: str, secrets: Any, *, is_token: bool) -> Diagnosis:
    about = f"{'token' if is_token else 'secret'} {name} in {project}"
    init = "tradewind cluster init-token" if is_token else f"gcloud secrets create {name} --project={project}"
    try:
        versions = TokenSecret(project, name, secrets).versions()
    except CloudError as error:
        return unknown(about, str(error))
    if not versions:
        return wrong(about, "there is none", init)
    if versions[0].state != "ENABLED":
        state = versions[0].state.lower()
        return wrong(
            about, f"version {versions[0].number}, the newest, is {state}", "Enable it, or add another version."
        )
    return well(about, f"version {versions[0].number}")


def _clocks(api: Any, now: Callable[[], float]) -> Diagnosis:
    """Compare this machine's clock with the date of a response from Google."""
    from google.auth.exceptions import GoogleAuthError
    from httplib2 import HttpLib2Error  # type: ignore[import-untyped]

    about = "clock"
    try:
        answer, _ = api._http.request(api._baseUrl, "HEAD")
        skew = now() - parsedate_to_datetime(answer["date"]).timestamp()
    except (OSError, HttpLib2Error, GoogleAuthError, KeyError, ValueError) as error:
        return unknown(about, f"Google Cloud does not say what time it is ({type(error).__name__})")
    if abs(skew) > _MAX_SKEW_S:
        mend = "Set this machine's clock by NTP: Google refuses credentials of another time."
        return wrong(about, f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} Google's", mend)
    return well(about, "as Google's")


def machine_diagnoses(clusters: Iterable[FleetCluster]) -> Iterator[Diagnosis]:
    """Check what this machine needs to start ``clusters``."""
    yield _gcloud()
    if shutil.which("ssh") is None:
        yield wrong("ssh", "not installed", "Install OpenSSH's client: heads are reached with it.")
    else:
        yield well("ssh", "installed")
    yield _versions()
    for key in sorted({cluster.ssh_private_key for cluster in clusters}):
        yield _key(key)


def _gcloud() -> Diagnosis:
    if shutil.which("gcloud") is None:
        return wrong(
            "gcloud", "not installed", "Install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install"
        )
    command = ["gcloud", "version", "--format=json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return well("gcloud", str(json.loads(done.stdout)[_SDK]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        return wrong("gcloud", f"does not run ({type(error).__name__})", "Run 'gcloud version', and install it anew.")


def _versions() -> Diagnosis:
    python = f"Python {platform.python_version()}"
    try:
        return well("versions", f"{python}, Ray {version('ray')}, Tradewind {version('airflow-provider-tradewind')}")
    except PackageNotFoundError as error:
        mend = "Install airflow-provider-tradewind[fleet] with the Ray of requirements.lock."
        return wrong("versions", f"{python}, and {error.name} is not installed", mend)


def _key(named: str) -> Diagnosis:
    about = f"SSH key {named}"
    try:
        file = expanded(named, "ssh_private_key")
    except BadPathError as error:
        return wrong(about, str(error), "Name the key as ssh_private_key in the fleet file.")
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        mend = "Fetch the fleet's key to there, or name yours as ssh_private_key in the fleet file."
        return wrong(about, f"cannot be read ({error.strerror})", mend)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return wrong(about, f"can be used by others (mode {mode:04o}), so ssh refuses it", f"chmod 600 {file}")
    return well(about, "there, for its owner alone")


def running_diagnoses(clusters: Iterable[FleetCluster], here: str) -> Iterator[Diagnosis]:
    """Compare Ray's version on each cluster with a head with the version ``here``."""
    for cluster in clusters:
        about = f"Ray of cluster {cluster.name}"
        try:
            with connected(cluster) as connection:
                there = check_connection(connection).ray_version
        except NoHeadError:
            continue
        except (FleetError, RayJobsError) as error:
            yield unknown(about, str(error))
            continue
        if there == here:
            yield well(about, f"{there}, as here")
        else:
            image = f"name an image with Ray {here} in the fleet file and restart the cluster"
            yield wrong(about, f"{there}, and {here} here", f"Install ray=={there} here, or {image}.")
