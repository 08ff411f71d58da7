"""``tradewind registry set-cleanup-policy`` removes old images, keeps the newest and users' policies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.fleet.clouds import served
from tests.fleet.fleets import many_clusters, write_fleet
from tests.support.google import LocalArtifactRegistry

COMMAND = ("registry", "set-cleanup-policy")
HERE = "projects/my-project/locations/us-central2/repositories/tradewind"
THERE = "projects/my-project/locations/us-east5/repositories/tradewind"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalArtifactRegistry]:
    """Set up a fleet in two regions, each with a repository."""
    file = write_fleet(tmp_path, many_clusters(2), inside=False)
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))
    with served(LocalArtifactRegistry(), "artifactregistry") as server:
        server.put(HERE)
        server.put(THERE)
        yield server


def test_both_rules_are_set_and_are_right_then(registry: LocalArtifactRegistry, run: Run) -> None:
    one = ("tradewind", "--region", "us-central2", "--project", "my-project")
    code, out, _ = run(*one, "--check")
    assert code == 1 and out == f"{HERE}: lacks delete-after-30-days and keep-newest-16\n"
    assert "cleanupPolicies" not in registry.get(HERE)
    assert run(*one)[0] == 0
    policies = registry.get(HERE)["cleanupPolicies"].values()
    assert [policy["action"] for policy in policies] == ["DELETE", "KEEP"]
    assert [policy.get("condition") for policy in policies] == [{"tagState": "ANY", "olderThan": "2592000s"}, None]
    assert [policy.get("mostRecentVersions") for policy in policies] == [None, {"keepCount": 16}]
    assert registry.get(HERE)["cleanupPolicyDryRun"] is False
    assert run(*one, "--check")[0] == 0
    assert run(*one)[0] == 0 and registry.requests["patch"] == 1, "a right policy is not written again"
    registry.put(HERE, cleanupPolicies=registry.get(HERE)["cleanupPolicies"], cleanupPolicyDryRun=True)
    code, out, _ = run(*one, "--check")
    assert code == 1 and "only says what it would remove (dry run)" in out


def test_all_covers_each_fleet_repository_once_despite_failure(
    registry: LocalArtifactRegistry, run: Run, tmp_path: Path
) -> None:
    more = "  far: {zone: us-west4-a, generation: v5e, bucket: my-bucket-4}\n"
    own = "  own: {zone: us-west1-a, generation: v5e, bucket: my-bucket-1, image: ghcr.io/us/cluster}\n"
    write_fleet(tmp_path, many_clusters(2) + more + own, inside=False)
    code, out, err = run("--all")
    assert code == 1 and [line.partition(":")[0] for line in out.splitlines()] == [HERE, THERE]
    assert "Repository tradewind in my-project, us-west4: Google Cloud answers 404" in err
    assert "1 of 3 repositories could not be set." in err and "us-west1" not in err
    code, _, err = run("another", "--all")
    assert code == 2 and "No cluster of the fleet has its image in a repository 'another'" in err


def test_foreign_policies_stay_and_equal_policy_is_reused(registry: LocalArtifactRegistry, run: Run) -> None:
    theirs = {"id": "keep-releases", "action": "KEEP", "condition": {"tagPrefixes": ["release"]}}
    same = {"id": "old", "action": "DELETE", "condition": {"tagState": "ANY", "olderThan": "2592000s"}}
    registry.put(HERE, cleanupPolicies={"keep-releases": theirs, "old": same}, cleanupPolicyDryRun=True)
    code, out, _ = run("tradewind", "--region", "us-central2")
    assert code == 0 and "also keep-releases, which stays" in out
    assert set(registry.get(HERE)["cleanupPolicies"]) == {"keep-releases", "old", "keep-newest-16"}
    assert registry.get(HERE)["cleanupPolicies"]["keep-releases"] == theirs


def test_missing_permission_is_reported(registry: LocalArtifactRegistry, run: Run) -> None:
    registry.denied.add("artifactregistry.repositories.update")
    code, _, err = run("tradewind", "--region", "us-central2")
    assert code == 1 and "access is denied (Permission 'artifactregistry.repositories.update' denied" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tradewind#b", "--region", "us-central2"), "'tradewind#b' is no name of a repository"),
        (("tradewind/x", "--region", "us-central2"), "'tradewind/x' is no name of a repository"),
        (("tradewind", "--region", "us-central2?x"), "'us-central2?x' is no zone or region"),
        (("tradewind", "--region", "us-central2", "--project", "my-project/../x"), "'my-project/../x' is no project"),
    ],
)
def test_name_that_a_url_would_misread_is_refused(
    registry: LocalArtifactRegistry, run: Run, words: tuple[str, ...], says: str
) -> None:
    code, _, err = run(*words)
    assert code == 1 and says in err and not registry.requests


@pytest.mark.parametrize("policies", [["a"], {"a": "b"}, {"a": {"mostRecentVersions": 3}}])
def test_policies_of_another_type_are_reported(registry: LocalArtifactRegistry, run: Run, policies: object) -> None:
    registry.put(HERE, cleanupPolicies=policies)
    code, _, err = run("tradewind", "--region", "us-central2")
    assert code == 1 and "tradewind in my-project, us-central2: Google Cloud's answer cannot be read" in err
    assert registry.get(HERE)["cleanupPolicies"] == policies


@pytest.mark.parametrize("words", [[], ["tradewind"], ["--region", "us-east5"], ["--all", "--region", "us-east5"]])
def test_options_without_repository_are_refused(registry: LocalArtifactRegistry, run: Run, words: list[str]) -> None:
    assert run(*words)[0] == 2
    assert not registry.requests
