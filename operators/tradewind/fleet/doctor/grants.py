"""Which roles a service account has: on the project, or on the one thing that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tradewind.fleet.cloud.google_api import CloudError, answer_of
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.doctor.diagnosis import Diagnosis, unknown, well, wrong

SECRET_ROLE: Final = "roles/secretmanager.secretAccessor"
IMAGE_ROLE: Final = "roles/artifactregistry.reader"
LIST_ROLE: Final = "roles/compute.viewer"
"""Of hosts that look for their cluster's head."""
_AS_GOOD: Final = {
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
"""Role → those that hold all of it that is needed here."""


def grant_diagnoses(cluster: FleetCluster, projects: Any, secrets: Any, registry: Any) -> Iterator[Diagnosis]:
    """Whether head and slices of ``cluster`` may read its secrets and its image, and added slices find the head."""
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
    worker, about = cluster.worker_service_account, "finding the head, from slices that people add"
    yield _finding(worker, LIST_ROLE, cluster.project, projects, about)


def _finding(account: str, role: str, project: str, projects: Any, thing: str, own: Any = None) -> Diagnosis:
    """Whether ``account`` has ``role``; ``own`` asks for the policy of ``thing``, if that has one of its own."""
    about = f"{account}: {thing}"
    of_project = projects.projects().getIamPolicy(resource=f"projects/{project}", body={})
    places = [(f"project {project}", of_project), *([(thing, own)] if own is not None else [])]
    problems = []
    for place, request in places:
        try:
            if found := _roles(answer_of(request, f"The policy of {place}"), account) & _AS_GOOD[role]:
                return well(about, f"{min(found)} on {place}")
        except CloudError as error:
            problems.append(str(error))
    mend = f"gcloud projects add-iam-policy-binding {project} --member=serviceAccount:{account} --role={role}"
    if problems:
        return unknown(about, problems[0], f"Ask who may see it, for {role}.")
    return wrong(about, f"it has not {role}", mend)


def _roles(policy: Any, account: str) -> set[str]:
    """What the policy grants ``account`` without a condition."""
    member = f"serviceAccount:{account}"
    bindings = [each for each in policy.get("bindings", []) if member in each.get("members", [])]
    return {str(each["role"]) for each in bindings if not each.get("condition")}
