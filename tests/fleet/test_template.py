"""A cluster's file: its content, and the effects of its commands in a real shell."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import with_envs

from tests.fleet.fleets import TEMPLATE, write_fleet
from tradewind.fleet.cluster_files import ClusterTemplate
from tradewind.fleet.clusters import FleetCluster
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import load_fleet

GCLOUD = """#!/usr/bin/env bash
# Google's command line, as far as a node asks it for a secret.
echo "$*" >> "$HOME/gcloud.log"
for argument; do
  case "$argument" in
    --secret=*) secret="${argument#*=}" ;;
    --out-file=*) file="${argument#*=}" ;;
  esac
done
[ "$secret" != MISSING ] || exit 1
printf "%s" "it's \\"$secret\\" \\$HOME" > "$file"
"""
RAY = """#!/usr/bin/env bash
echo "$*" >> "$HOME/ray.log"
env | grep -E '^(HF_TOKEN|RAY_gcs|RAY_enable)' | sort >> "$HOME/ray.log" || true
"""


def content(folder: Path, more: str = "") -> dict[str, Any]:
    """Return the file of the cluster ``here`` with these further fields."""
    fleet = load_fleet(write_fleet(folder, more))
    return dict(yaml.safe_load(ClusterTemplate(TEMPLATE).text(fleet.cluster())))


class Node:
    """A home folder and a shell in which gcloud and ray only record their arguments."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name, text in {"gcloud": GCLOUD, "ray": RAY}.items():
            program = home / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)

    def run(self, command: str) -> int:
        """Run ``command`` as Ray does: with ``~/`` expanded, in a subshell of bash."""
        env = {"HOME": str(self.home), "PATH": f"{self.home}/bin:{os.environ['PATH']}", "RAY_HEAD_IP": "10.0.0.2"}
        expanded = command.replace("~/", f"{self.home}/")
        return subprocess.run(["bash", "-c", f"true && ({expanded})"], env=env, check=False).returncode


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "home").mkdir()
    return Node(tmp_path / "home")


def test_head_has_no_cpus_and_separate_persistent_state_disk(tmp_path: Path) -> None:
    head = content(tmp_path)["available_node_types"]["head_default"]
    assert head["resources"] == {"CPU": 0, "head_node": 1} and head["max_workers"] == 0
    boot, state = head["node_config"]["disks"]
    assert (boot["autoDelete"], boot["initializeParams"]["diskSizeGb"]) == (True, 200)
    assert state["autoDelete"] is False and "initializeParams" not in state
    assert state["source"] == "projects/my-project/zones/us-central2-b/disks/ray-here-state"


def test_ray_state_and_logs_are_mounted_from_state_disk(tmp_path: Path) -> None:
    made = content(tmp_path)
    start = made["head_start_ray_commands"][-1]
    mounts = [option for option in made["docker"]["head_run_options"] if "--mount" in option]
    targets = {option.rpartition("target=")[2] for option in mounts}
    assert targets == {"/tmp/ray", "/var/lib/ray-gcs"}
    assert "--temp-dir=/tmp/ray" in start and "RAY_gcs_storage_path=/var/lib/ray-gcs" in start
    assert all("source=/mnt/disks/tradewind-state/" in option for option in mounts)


@pytest.mark.parametrize(
    ("capacity", "scheduling"), [("preemptible", "preemptible"), ("reserved", "reserved"), ("best_effort", "spot")]
)
def test_slices_are_requested_as_in_the_fleet_file(capacity: str, scheduling: str, tmp_path: Path) -> None:
    more = f"capacity: {capacity}\nmin_workers: 2\nslices: {{v4-16: {{min: 1, max: 7}}}}\n"
    types = content(tmp_path, more)["available_node_types"]
    base, other = types["tpu_worker"], types["tpu_slice_v4_16"]
    assert (base["min_workers"], other["min_workers"], other["max_workers"]) == (2, 1, 7)
    assert base["resources"] == {"CPU": 120, "TPU": 4}
    assert base["node_config"]["schedulingConfig"] == {scheduling: True}
    node = base["node_config"]
    assert (node["acceleratorType"], node["runtimeVersion"]) == ("v4-8", "tpu-ubuntu2204-base")
    assert node["serviceAccount"]["email"].startswith("worker@")
    assert types["head_default"]["node_config"]["serviceAccounts"][0]["email"].startswith("head@")


def test_bucket_token_mode_and_registry_login_follow_the_fleet(tmp_path: Path) -> None:
    shared = content(tmp_path)["docker"]["run_options"]
    for variable in ("TRADEWIND_PREFIX=gs://my-bucket", "MARIN_PREFIX=gs://my-bucket", "RAY_AUTH_MODE=token"):
        assert f"-e {variable}" in shared
    for image, is_googles in (("tradewind_cluster", True), ("ghcr.io/team/cluster", False)):
        commands = content(tmp_path, f"image: {image}\n")["initialization_commands"]
        assert any("configure-docker" in command for command in commands) == is_googles


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_token_and_secrets_reach_ray_through_owner_only_files(kind: str, node: Node, tmp_path: Path) -> None:
    stop, *_, fetch, start = content(tmp_path, "environment: {HF_TOKEN: hugging}\n")[f"{kind}_start_ray_commands"]
    assert stop == "ray stop"
    stale = node.home / ".tradewind" / "environment" / "GONE"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    assert node.run(fetch) == 0 and node.run(start) == 0
    token, variable = node.home / ".ray" / "auth_token", stale.with_name("HF_TOKEN")
    assert {file.name for file in stale.parent.iterdir()} == {"HF_TOKEN"}
    for file, secret in {token: "RAY_AUTH_TOKEN", variable: "hugging"}.items():
        assert file.read_text() == f'it\'s "{secret}" $HOME' and file.stat().st_mode & 0o777 == 0o600
    command, *env = (node.home / "ray.log").read_text().splitlines()
    assert command.startswith("start ") and "it's" not in command
    assert 'HF_TOKEN=it\'s "hugging" $HOME' in env
    assert ("RAY_gcs_storage=rocksdb" in env) == (kind == "head")
    assert "--project=my-project" in (node.home / "gcloud.log").read_text()


def test_plain_ray_up_starts_the_first_autoscaler_too(node: Node, tmp_path: Path) -> None:
    as_of_plain = with_envs(content(tmp_path)["head_start_ray_commands"], {"RAY_enable_autoscaler_v2": "1"})
    assert node.run(as_of_plain[-1]) == 0
    assert "RAY_enable_autoscaler_v2=0" in (node.home / "ray.log").read_text().splitlines()


def test_unavailable_secret_aborts_start_and_keeps_old_token(node: Node, tmp_path: Path) -> None:
    token = node.home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("old")
    assert node.run(content(tmp_path, "token_secret: MISSING\n")["head_start_ray_commands"][1]) != 0
    assert token.read_text() == "old"


def test_bash_can_parse_every_command(tmp_path: Path) -> None:
    made = content(tmp_path)
    commands = [command for section, found in made.items() if section.endswith("_commands") for command in found]
    assert len(commands) > 8
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_config_hash_is_stable_and_changes_with_any_setting(cluster: FleetCluster, tmp_path: Path) -> None:
    hashes = [
        content(tmp_path, more)["provider"]["labels"]["tradewind-config"]
        for more in ("", "", "tag: other\n", "slices: {v4-16: {max: 3}}\n", "owner: me\n")
    ]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 4
    changed = tmp_path / "changed.j2"
    changed.write_text(TEMPLATE.read_text() + "# more\n")
    assert hashes[0] not in ClusterTemplate(changed).text(cluster)


def test_change_not_needing_new_head_keeps_its_node_config(tmp_path: Path) -> None:
    """Ray replaces the head, and with it every job, when the head's ``node_config`` changes."""
    first, second = (
        content(tmp_path, more)["available_node_types"]["head_default"]["node_config"]
        for more in ("", "tag: other\nslices: {v4-16: {max: 3}}\nmin_workers: 9\nenvironment: {A: B}\n")
    )
    assert first == second


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"\xff", "cannot be used: it is no text (not UTF-8)"),
        (b"a" * ((1 << 20) + 1), "cannot be used: it has more than"),
        (None, "cannot be read (No such file or directory): it belongs beside the fleet file"),
        (b"{% if %}", "cannot be read: "),
        (b"{{ cluster.colour }}", "cannot be filled in for here: "),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unusable_template_is_named(source: bytes | None, says: str, cluster: FleetCluster, tmp_path: Path) -> None:
    file = tmp_path / "other.j2"
    if source is not None:
        file.write_bytes(source)
    with pytest.raises(FleetError) as caught:
        ClusterTemplate(file).text(cluster)
    assert str(file) in str(caught.value) and says in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ cluster.__class__.__init__.__globals__ }}",
        "{{ ().__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].environ }}",
        "{{ '{0.__class__}'.format(cluster) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'cluster.yaml.j2' as other %}",
        "{{ range(10 ** 9) | list }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% set x = range(99999) | sum %}{% endfor %}",
        "{% set x = namespace(y='%0999999d' % 1) %}{% for a in range(99) %}{% set x.y = x.y ~ x.y %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set x = namespace(y=9) %}{% for a in range(99) %}{% set x.y = x.y * x.y %}{% endfor %}",
        "{{ 'a' | center(10000000000) }}",
        "{{ '%01000000000d' % cluster.max_workers }}",
        "{{ 1 / 0 }}",
        "{{ cluster.pools[999].kind }}",
        "{{ cluster.name + 1 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ " + "(" * 20_000,
        "a: \0",
    ],
    ids=lambda text: text[:40],
)
def test_template_runs_no_code_and_reads_no_file(cluster: FleetCluster, tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.yaml.j2"
    file.write_text(text)
    with pytest.raises(FleetError, match=r"The template .*cluster\.yaml\.j2 cannot be (read|filled in)") as refused:
        print(ClusterTemplate(file).text(cluster))
    assert str(refused.value).isprintable() and len(str(refused.value)) < 700
