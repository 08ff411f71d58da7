"""Real builds of the images on a Debian instead of the public bases; each starts in its image, and one is pushed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import requests

from tests.fleet.fleets import REPOSITORY, SHIPPED
from tests.images.buildah import (
    CERTIFICATES,
    VARIABLE,
    ArtifactRegistry,
    Buildah,
    debian,
    docker_registry,
    make_base,
    storage,
)
from tests.support.http_server import serving
from tradewind.fleet.fleet_file import load_fleet
from tradewind.rehearsal.local.processes import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(VARIABLE not in os.environ, reason="this builds images, for many minutes: make images-test"),
]
SETTING = re.compile(r"(?i)index-url|find-links|trusted-host|PIP_|CERT|/run/secrets")
CHIPS = os.environ.get(VARIABLE, "").split(",")
"""Large images to build, from ``BUILD_IMAGES=cuda`` for example; the tests skip the others."""


def locked(package: str) -> str:
    [version] = re.findall(rf"^{package}==(\S+)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    return str(version)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    folder = tmp_path_factory.mktemp("images")
    with storage(folder) as buildah:
        root = debian(folder)
        make_base(buildah, root, "localhost/base-ray", "ray", (1000, 100))
        make_base(buildah, root, "localhost/base-airflow", "airflow", (50000, 0))
        yield buildah


def build(buildah: Buildah, image: str, base: str) -> None:
    """Build an image as the make target does."""
    arguments = ["--builder", "buildah", "--fleet", str(SHIPPED), "--tags", "latest", "--fleet-tag", "abc1234"]
    arguments += ["--build-arg", f"BASE=localhost/{base}", "--build-arg", "GCLOUD_VERSION="]
    if CERTIFICATES.exists():
        arguments += ["--secret", f"ca_certificates={CERTIFICATES}"]
    command = [sys.executable, "-m", "scripts.images", "build", "--image", image, *arguments]
    subprocess.run(command, cwd=REPOSITORY, env=buildah.environment, check=True)


@pytest.fixture(scope="module")
def cluster(buildah: Buildah) -> str:
    build(buildah, "cluster", "base-ray")
    return "localhost/tradewind_cluster:latest"


@pytest.fixture(scope="module")
def airflow(buildah: Buildah) -> str:
    build(buildah, "airflow", "base-airflow")
    return "localhost/tradewind_airflow:latest"


LEFTOVERS = "id -un; pip config list; pip cache dir 2>/dev/null | xargs du -s 2>/dev/null; ls /run/secrets 2>/dev/null"


def check_contents(buildah: Buildah, image: str, user: str) -> None:
    """Check that the image has no setting or certificate of this machine, no pip cache, and consistent packages."""
    assert not SETTING.search(buildah("inspect", "--format", "{{.OCIv1.Config}}", image))
    assert buildah.output(image, "sh", "-c", LEFTOVERS).split() == [user]
    assert "No broken requirements found." in buildah.output(image, "pip", "check")
    print(f"image-size {image} {buildah.size_bytes(image) / 1e9:.2f} GB")


def test_cluster_image_has_ray_levanter_libtpu_but_no_airflow(buildah: Buildah, cluster: str) -> None:
    check_contents(buildah, cluster, "ray")
    assert buildah.output(cluster, "ray", "--version") == f"ray, version {locked('ray')}"
    assert "Experiments" in buildah.output(cluster, "tradewind", "--help")
    installed = "import importlib.util as u; print([n for n in ('levanter', 'libtpu', 'airflow') if u.find_spec(n)])"
    assert buildah.output(cluster, "python", "-c", installed) == "['levanter', 'libtpu']"


@pytest.mark.parametrize("shell", [["sh", "-c"], ["bash", "-c"], ["bash", "--login", "-c", "-i"]])
def test_programs_are_on_path_in_ray_and_docker_shells(buildah: Buildah, cluster: str, shell: list[str]) -> None:
    found = buildah.output(cluster, *shell, "command -v ray; command -v python; command -v tradewind").split()
    assert [Path(path).name for path in found] == ["ray", "python", "tradewind"]


TOKEN = secrets.token_hex(32)
WITH_TOKEN = ["--env=RAY_AUTH_MODE=token", f"--env=RAY_AUTH_TOKEN={TOKEN}", "--env=RAY_raylet_start_wait_time_s=600"]
"""Ray listens beyond the loopback, so its clients must send a token."""


@contextmanager
def ray_head(buildah: Buildah, image: str) -> Iterator[str]:
    """Run a head in the image; yield the address of its dashboard. End its processes afterwards."""
    ports = {name: free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
    options = [f"--{name}={port}" for name, port in ports.items()] + ["--min-worker-port=0", "--max-worker-port=0"]
    head = ["ray", "start", "--head", "--block", "--num-cpus=1", "--temp-dir=/tmp/ray-image", *options]
    with buildah.container(image) as container:
        process = subprocess.Popen(["buildah", "run", *WITH_TOKEN, container, "--", *head], env=buildah.environment)
        try:
            address = f"http://127.0.0.1:{ports['dashboard-port']}"
            while not _answers(f"{address}/api/version"):
                assert process.poll() is None, "the head ended at once"
            yield address
        finally:
            _end_session(process)


def _answers(url: str) -> bool:
    try:
        return requests.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10).ok
    except requests.RequestException:
        return False


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End every process of the container's session: a chroot has no process namespace."""
    started = psutil.Process(process.pid).children(recursive=True)
    for child in started:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(started, timeout=60)
    for child in alive:
        child.kill()
    process.wait()


def test_head_in_the_image_answers_and_runs_a_job(buildah: Buildah, cluster: str) -> None:
    with ray_head(buildah, cluster) as address:
        job = "import jax, levanter, tradewind; print('ran with', jax.__version__)"
        with buildah.container(cluster) as container:
            submit = ["ray", "job", "submit", f"--address={address}", "--", "python", "-c", job]
            printed = buildah("run", *WITH_TOKEN, container, "--", *submit)
    assert f"ran with {locked('jax')}" in printed


def test_airflow_image_starts_airflow_with_the_provider(buildah: Buildah, airflow: str) -> None:
    check_contents(buildah, airflow, "airflow")
    assert buildah.output(airflow, "airflow", "version").splitlines()[-1] == locked("apache-airflow")
    providers = buildah.output(airflow, "airflow", "providers", "list", "--output", "plain")
    assert "airflow-provider-tradewind" in providers
    make_secrets = "python /usr/local/lib/tradewind/compose_secrets.py /tmp/secrets && wc -c < /tmp/secrets/ray_token"
    assert buildah.output(airflow, "sh", "-c", make_secrets) == "64"


def test_image_with_cuda_can_be_built(buildah: Buildah) -> None:
    if "cuda" not in CHIPS:
        pytest.skip("of many gigabytes: make images-test BUILD_IMAGES=cuda")
    build(buildah, "cuda", "base-ray")
    check_contents(buildah, "localhost/tradewind_cluster_cuda:latest", "ray")


# ---- a push to a registry, which needs gcloud


needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="it is not installed: Debian has no package")
PUSH_TOKEN = "ya29.of-loopback"
TAGS = "latest abc1234 20260129"


def publish(
    buildah: Buildah, fleet: Path, registry: str, artifacts: ArtifactRegistry
) -> subprocess.CompletedProcess[str]:
    """Run ``make cluster_docker`` without the build, for two regions."""
    (buildah.folder / "token").write_text(PUSH_TOKEN)
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


@needs_gcloud
def test_release_pushes_three_tags_to_each_region_repository(tmp_path: Path) -> None:
    infra = tmp_path / "infra"
    with registries(tmp_path, PUSH_TOKEN) as (buildah, registry, artifacts):
        ended = publish(buildah, infra / "fleet.yaml", registry, artifacts)
        assert ended.returncode == 0, ended.stderr
        certificate = str(tmp_path / "registry.pem")
        for region in ("us-central2", "us-east5"):
            url = f"https://{registry}/v2/{region}/my-project/tradewind/tradewind_cluster/tags/list"
            assert requests.get(url, timeout=30, verify=certificate).status_code == 401
            found = requests.get(url, auth=("oauth2accesstoken", PUSH_TOKEN), timeout=30, verify=certificate).json()
            assert sorted(found["tags"]) == sorted(TAGS.split())
            assert f"projects/my-project/locations/{region}/repositories/tradewind" in artifacts.created
        assert PUSH_TOKEN not in ended.stdout + ended.stderr
        tags = {name: cluster.tag for name, cluster in load_fleet(infra / "fleet.yaml").clusters.items()}
        assert {name for name, tag in tags.items() if tag == "abc1234"} == {
            "us-central2", "big-run", "us-east5-a", "us-east5",
        }  # fmt: skip

        again = publish(buildah, infra / "fleet.yaml", registry, artifacts)
        assert again.returncode == 0, again.stderr
        assert len(artifacts.created) == 2


@needs_gcloud
def test_cluster_of_region_that_refuses_login_gets_no_tag(tmp_path: Path) -> None:
    fleet = tmp_path / "infra" / "fleet.yaml"
    with registries(tmp_path, "another") as (buildah, registry, artifacts):
        ended = publish(buildah, fleet, registry, artifacts)
    assert ended.returncode == 1
    assert ended.stderr.count("invalid username/password") == 2
    assert 'make cluster_docker CLUSTER_REPOS="us-central2 us-east5"' in ended.stderr
    assert PUSH_TOKEN not in ended.stdout + ended.stderr
    assert fleet.read_text() == SHIPPED.read_text()
