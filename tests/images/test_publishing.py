"""Image publishing: tags, push commands, and the clusters that then run the image."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.images.__main__ import main
from scripts.images.builder import Builder
from scripts.images.commands import Commands
from scripts.images.places import IMAGES, Repository
from scripts.images.release import name_tag, push_all, refuse_unfinished
from tests.fleet.fleets import REPOSITORY, SHIPPED
from tradewind.cli.main import parser
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet

CENTRAL = Repository("us-central2", "my-project", "tradewind")
HOST = "us-central2-docker.pkg.dev/my-project/tradewind"
TAGS = ("--tags", "latest abc1234 20260129", "--fleet-tag", "abc1234")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the output of a dry run."""
    assert main([*arguments, *TAGS, "--fleet", str(SHIPPED), "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()


def test_single_region_release_prints_build_tag_push_commands(capsys: pytest.CaptureFixture[str]) -> None:
    secret = ("--secret", "pip_conf=/etc/pip.conf", "--build-arg", "BASE=mine")
    assert shown(capsys, "build", "tag", "push", "name", "--regions", "us-central2", *secret) == [
        "docker build --platform linux/amd64 -f docker/Dockerfile.cluster -t tradewind_cluster:latest --build-arg "
        "BASE=mine --build-arg CHIPS=tpu --build-arg REVISION=abc1234 --secret id=pip_conf,src=/etc/pip.conf .",
        *(f"docker tag tradewind_cluster:latest {HOST}/tradewind_cluster:{tag}" for tag in TAGS[1].split()),
        "gcloud artifacts repositories describe tradewind --location=us-central2 --project=my-project",
        f"gcloud auth print-access-token | docker login -u oauth2accesstoken --password-stdin {HOST.partition('/')[0]}",
        *(f"docker push {HOST}/tradewind_cluster:{tag}" for tag in ("abc1234", "20260129", "latest")),
        f"{SHIPPED}: us-central2, big-run would get the tag abc1234.",
    ]


def test_without_regions_image_goes_to_its_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    pushes = [line for line in shown(capsys, "push", "--image", "vllm") if line.startswith("docker push")]
    regions = {line.split()[2].partition("-docker")[0] for line in pushes}
    assert regions == {"europe-west4", "us-central1", "us-central2", "us-east1", "us-east5"}
    assert len(pushes) == 15 and all("/tradewind_vllm:" in line for line in pushes)
    lines = shown(capsys, "push", "name", "--image", "airflow")
    assert f"docker push {HOST}/tradewind_airflow:latest" in lines
    assert lines[-1] == f"No cluster of {SHIPPED} gets the tag abc1234."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["build", "--regions", "us-centra2"], "no cluster of .* runs tradewind_cluster: did you mean us-central2"),
        (["push", "--image", "cuda"], "No cluster of .* pulls tradewind_cluster_cuda."),
        (["push", "--repository", "elsewhere"], "pulls tradewind_cluster from a repository elsewhere."),
    ],
)
def test_image_no_cluster_pulls_is_refused_before_build(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([*arguments, *TAGS, "--fleet", str(SHIPPED)]) == 1
    assert re.search(sentence, capsys.readouterr().err)


def test_tag_reaches_only_clusters_with_image_and_their_files(tmp_path: Path) -> None:
    infra = tmp_path / "infra"
    shutil.copytree(SHIPPED.parent, infra)
    fleet = load_fleet(infra / "fleet.yaml")
    name_tag(fleet, IMAGES["cluster"], [CENTRAL], "abc1234", is_dry=False)

    tagged = {name for name, cluster in load_fleet(fleet.file).clusters.items() if cluster.tag == "abc1234"}
    assert tagged == {"us-central2", "big-run"}
    files = {file.stem for file in (infra / "clusters").iterdir() if ":abc1234" in file.read_text()}
    assert files == tagged

    name_tag(load_fleet(fleet.file), IMAGES["staging"], [CENTRAL], "abc1234", is_dry=False)
    assert load_fleet(fleet.file).cluster("us-central2-staging").tag == "latest"


def test_failed_region_is_reported_with_command_to_repeat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    pushed, problems = push_all(Builder(Commands()), IMAGES["cluster"], [CENTRAL], ["latest"])
    assert pushed == [] and len(problems) == 1
    again = 'make cluster_docker CLUSTER_REPOS="us-central2"'
    with pytest.raises(FleetError, match=rf"us-central2: gcloud is not installed.*\n.*{again}"):
        refuse_unfinished(problems, pushed)


def test_secret_piped_between_commands_is_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("geheim1")
    Commands().run(["sh", "-c", "read token; test ${#token} = 7"], secret_input=["cat", str(file)])
    assert "geheim1" not in "".join(capfd.readouterr())


def test_make_target_passes_its_variables() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # make runs the test
    made = subprocess.run(
        [
            "make", "-n", "cluster_docker", "VLLM=1", "CLUSTER_REPOS=us-east5 us-east1", "GCLOUD_VERSION=",
            "PIP_CONF=/p", "TAG_VERSIONS=latest x", "FLEET_TAG=x", "DRY_RUN=1",
        ],
        cwd=REPOSITORY, env=outside, capture_output=True, text=True, check=True,
    ).stdout.splitlines()[-1]  # fmt: skip
    for part in (
        "--image vllm", '--regions "us-east5 us-east1"', '--tags "latest x"', '--fleet-tag "x"', "build tag push name",
        '--build-arg "GCLOUD_VERSION="', '--secret "pip_conf=/p"', "--dry-run",
    ):  # fmt: skip
        assert part in made
    assert "BASE=" not in made


@pytest.mark.parametrize(
    "target",
    [
        "configure_gcp_registry_all", "get_ray_auth_token", "get_ray_auth_token_staging", "init_ray_auth_token_secret",
        "lint",
    ],
)  # fmt: skip
def test_make_targets_call_existing_commands(target: str) -> None:
    shown = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    calls = [line.partition("bin/tradewind ")[2] for line in shown.splitlines() if "bin/tradewind " in line]
    assert calls
    for call in calls:
        assert vars(parser().parse_args(shlex.split(call)))
