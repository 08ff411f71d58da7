"""The real Buildah and the real gcloud push an image, then the fleet file names its tag."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.fleet.fleets import REPOSITORY, SHIPPED
from tests.images.buildah import VARIABLE, Buildah, storage
from tests.images.loopback_registry import ArtifactRegistry, docker_registry
from tests.support.http_server import serving
from tradewind.fleet.fleet_file import load_fleet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(VARIABLE not in os.environ, reason="this needs Buildah and a registry: make images-test"),
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed, and Debian has no package"),
]
TOKEN = "ya29.of-loopback"
TAGS = "latest abc1234 20260129"


def publish(
    buildah: Buildah, fleet: Path, registry: str, artifacts: ArtifactRegistry
) -> subprocess.CompletedProcess[str]:
    """Run ``make cluster_docker`` without the build, for two regions."""
    (buildah.folder / "token").write_text(TOKEN)
    gcloud = {
        "CLOUDSDK_CONFIG": str(buildah.folder / "gcloud"),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(buildah.folder / "token"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_ARTIFACTREGISTRY": artifacts.url,
        "SSL_CERT_FILE": str(buildah.folder / "registry.pem"),
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
    }
    options = ["--builder", "buildah", "--fleet", str(fleet), "--registry", registry + "/{region}/{project}"]
    command = [sys.executable, "-m", "scripts.images", "tag", "push", "name", *options, "--tags", TAGS]
    return subprocess.run(
        [*command, "--fleet-tag", "abc1234", "--regions", "us-central2 us-east5"],
        cwd=REPOSITORY, env=buildah.environment | gcloud, capture_output=True, text=True,
    )  # fmt: skip


@contextmanager
def registries(folder: Path, password: str) -> Iterator[tuple[Buildah, str, ArtifactRegistry]]:
    """Yield a Buildah with the cluster's image, the address of a registry with this password, and its API."""
    shutil.copytree(SHIPPED.parent, folder / "infra")
    with (
        storage(folder) as buildah,
        docker_registry(folder, "oauth2accesstoken", password) as registry,
        serving(ArtifactRegistry()) as artifacts,
    ):
        (folder / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
        buildah("build", "--quiet", "-t", "tradewind_cluster:latest", str(folder))
        yield buildah, registry, artifacts


def test_release_pushes_three_tags_to_each_region_repository(tmp_path: Path) -> None:
    infra = tmp_path / "infra"
    with registries(tmp_path, TOKEN) as (buildah, registry, artifacts):
        ended = publish(buildah, infra / "fleet.yaml", registry, artifacts)
        assert ended.returncode == 0, ended.stderr
        certificate = str(tmp_path / "registry.pem")
        for region in ("us-central2", "us-east5"):
            url = f"https://{registry}/v2/{region}/my-project/tradewind/tradewind_cluster/tags/list"
            assert requests.get(url, timeout=30, verify=certificate).status_code == 401
            found = requests.get(url, auth=("oauth2accesstoken", TOKEN), timeout=30, verify=certificate).json()
            assert sorted(found["tags"]) == sorted(TAGS.split())
            assert f"projects/my-project/locations/{region}/repositories/tradewind" in artifacts.created
        assert TOKEN not in ended.stdout + ended.stderr
        tags = {name: cluster.tag for name, cluster in load_fleet(infra / "fleet.yaml").clusters.items()}
        assert {name for name, tag in tags.items() if tag == "abc1234"} == {
            "us-central2", "big-run", "us-east5-a", "us-east5",
        }  # fmt: skip

        again = publish(buildah, infra / "fleet.yaml", registry, artifacts)
        assert again.returncode == 0, again.stderr
        assert len(artifacts.created) == 2


def test_cluster_of_region_that_refuses_login_gets_no_tag(tmp_path: Path) -> None:
    fleet = tmp_path / "infra" / "fleet.yaml"
    with registries(tmp_path, "another") as (buildah, registry, artifacts):
        ended = publish(buildah, fleet, registry, artifacts)
    assert ended.returncode == 1
    assert ended.stderr.count("invalid username/password") == 2
    assert 'make cluster_docker CLUSTER_REPOS="us-central2 us-east5"' in ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr
    assert fleet.read_text() == SHIPPED.read_text()
