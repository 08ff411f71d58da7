"""What Google Cloud has to have before a cluster starts: permissions, bucket, token and secrets, roles, one time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any, Final

from tradewind.fleet.cloud.google_api import CloudDeniedError, CloudError, answer_of, google_api
from tradewind.fleet.cloud.token_secret import TokenSecret
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.doctor.diagnosis import Diagnosis, unknown, well, wrong
from tradewind.fleet.doctor.grants import grant_diagnoses

PERMISSIONS: Final = (
    "compute.instances.list", "compute.instances.create", "compute.instances.delete", "compute.instances.setLabels",
    "compute.instances.setMetadata", "compute.instances.getGuestAttributes", "compute.disks.create",
    "compute.disks.use", "compute.subnetworks.use", "tpu.nodes.list", "tpu.nodes.create", "tpu.nodes.delete",
    "iam.serviceAccounts.actAs", "secretmanager.versions.access",
)  # fmt: skip
"""What who starts and stops clusters needs."""
_ROLES: Final = (
    "roles/compute.instanceAdmin.v1, roles/tpu.admin, roles/iam.serviceAccountUser and "
    "roles/secretmanager.secretAccessor"
)
_MOST_SKEW_S: Final = 30.0
_CREDENTIALS: Final = "credentials"


def cloud_diagnoses(clusters: Iterable[FleetCluster], *, now: Callable[[], float] = time.time) -> Iterator[Diagnosis]:
    """How Google Cloud is, for ``clusters``; nothing is changed."""
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
        granted = set(answer_of(request, about).get("permissions", []))
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
    """This machine's clock beside Google's, by the date of any answer."""
    from google.auth.exceptions import GoogleAuthError
    from httplib2 import HttpLib2Error  # type: ignore[import-untyped]

    about = "clock"
    try:
        answer, _ = api._http.request(api._baseUrl, "HEAD")
        theirs = parsedate_to_datetime(answer["date"]).timestamp()
    except (OSError, HttpLib2Error, GoogleAuthError, KeyError, ValueError) as error:
        return unknown(about, f"Google Cloud does not say what time it is ({type(error).__name__})")
    skew = now() - theirs
    if abs(skew) > _MOST_SKEW_S:
        mend = "Set this machine's clock by NTP: Google refuses credentials of another time."
        return wrong(about, f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} Google's", mend)
    return well(about, "as Google's")
