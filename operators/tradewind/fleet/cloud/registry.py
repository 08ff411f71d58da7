"""Clean-up policies of Artifact Registry: delete image versions after a month, but never the newest ones.

Other policies of a repository stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tradewind.cloud_tpu.errors import BadEndpointError
from tradewind.cloud_tpu.resources import check_place
from tradewind.fleet.cloud.google_api import CloudNotFoundError, execute_request, readable_answer
from tradewind.fleet.clusters import Fleet, FleetCluster
from tradewind.fleet.errors import FleetError

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
OLDEST_DAYS: Final = 30
NEWEST_KEPT: Final = 16
POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    f"delete-after-{OLDEST_DAYS}-days": {
        "action": "DELETE",
        "condition": {"tagState": "ANY", "olderThan": f"{OLDEST_DAYS * 86_400}s"},
    },
    f"keep-newest-{NEWEST_KEPT}": {"action": "KEEP", "mostRecentVersions": {"keepCount": NEWEST_KEPT}},
}


@dataclass(frozen=True, order=True)
class ImageRepository:
    """One repository of images.

    Raises:
        FleetError: A name could name another resource in Google's URLs.
    """

    project: str
    region: str
    name: str

    def __post_init__(self) -> None:
        try:
            check_place(self.project, self.region)
        except BadEndpointError as error:
            raise FleetError(f"Repository {self.name}: {error}") from None
        if not _NAME.fullmatch(self.name):
            raise FleetError(
                f"{self.name!r} is no name of a repository: at most 63 lowercase letters, digits and hyphens, "
                "beginning with a letter."
            )

    @property
    def path(self) -> str:
        """Name in Google's API."""
        return f"projects/{self.project}/locations/{self.region}/repositories/{self.name}"


@dataclass(frozen=True)
class CleanupState:
    """Clean-up settings of a repository.

    Attributes:
        missing: Names of the policies in ``POLICIES`` that it lacks.
        others: IDs of its other policies.
        is_dry_run: Whether Google only logs what it would remove.
    """

    policies: Mapping[str, Mapping[str, Any]]
    missing: tuple[str, ...]
    others: tuple[str, ...]
    is_dry_run: bool

    @property
    def is_right(self) -> bool:
        return not self.missing and not self.is_dry_run


def fleet_repositories(fleet: Fleet) -> list[ImageRepository]:
    """Return the repositories of the clusters' images, without images that name a registry of their own."""
    clusters = [cluster for cluster in fleet.clusters.values() if "/" not in cluster.image]
    return sorted({ImageRepository(each.project, each.region, each.repository) for each in clusters})


def check_image(cluster: FleetCluster, client: Any) -> None:
    """Check that the image of ``cluster`` exists; images of other registries are not checked.

    Raises:
        FleetError: It does not exist.
        CloudError: Google Cloud does not answer.
    """
    if "/" in cluster.image:
        return
    repository = ImageRepository(cluster.project, cluster.region, cluster.repository)
    tags = client.projects().locations().repositories().packages().tags()
    request = tags.get(name=f"{repository.path}/packages/{cluster.image}/tags/{cluster.tag}")
    try:
        execute_request(request, f"Image {cluster.full_image}")
    except CloudNotFoundError:
        raise FleetError(
            f"Cluster {cluster.name}: there is no image {cluster.full_image}: push it with 'make cluster_docker', or "
            "name another tag in the fleet file. Nothing was started."
        ) from None


def cleanup_state(repository: ImageRepository, client: Any) -> CleanupState:
    """Read the clean-up settings of ``repository``.

    Raises:
        CloudError: The repository does not exist, or Google Cloud does not answer.
    """
    request = client.projects().locations().repositories().get(name=repository.path)
    what = f"Repository {repository.name} in {repository.project}, {repository.region}"
    found = execute_request(request, what)
    with readable_answer(what):
        policies: Mapping[str, Mapping[str, Any]] = found.get("cleanupPolicies", {})
        rules = [_rule(policy) for policy in policies.values()]
        missing = tuple(name for name, policy in POLICIES.items() if _rule(policy) not in rules)
        others = tuple(name for name, policy in policies.items() if _rule(policy) not in map(_rule, POLICIES.values()))
    return CleanupState(policies, missing, others, bool(found.get("cleanupPolicyDryRun")))


def set_cleanup(repository: ImageRepository, state: CleanupState, client: Any) -> None:
    """Add the missing policies to ``repository``, which was found in ``state``.

    Raises:
        CloudError: Google Cloud refuses or does not answer.
    """
    added = {name: {"id": name, **POLICIES[name]} for name in state.missing}
    body = {"cleanupPolicies": {**state.policies, **added}, "cleanupPolicyDryRun": False}
    mask = "cleanupPolicies,cleanupPolicyDryRun"
    request = client.projects().locations().repositories().patch(name=repository.path, updateMask=mask, body=body)
    execute_request(request, f"To set the clean-up of {repository.path}", is_write=True)


def _rule(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a policy does, without its name."""
    rule = {name: value for name, value in policy.items() if name != "id"}
    kept = rule.get("mostRecentVersions", {})
    if "keepCount" in kept:
        rule["mostRecentVersions"] = {**kept, "keepCount": str(kept["keepCount"])}
    return rule
