"""Validation of any cluster file reports, with its line, what Ray would accept or drop silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.fleets import TEMPLATE, write_fleet
from tradewind.fleet.cluster_file_checks import check_cluster_file
from tradewind.fleet.cluster_files import ClusterTemplate
from tradewind.fleet.errors import BadFileError
from tradewind.fleet.fleet_file import load_fleet

RAYS_OWN = """\
cluster_name: mine
max_workers: 2
provider: {type: gcp, region: us-west1, availability_zone: us-west1-a, project_id: my-project}
auth: {ssh_user: ubuntu}
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 2}
    node_config: &node
      machineType: n1-standard-2
      disks:
        - {boot: true, initializeParams: {diskSizeGb: 50, sourceImage: a/b}}
  worker:
    resources: {CPU: 2}
    node_config:
      <<: *node
      scheduling: {preemptible: true}
"""
"""Like Ray's own examples, which omit fields that Ray fills in."""


def problems(folder: Path, text: str) -> list[str]:
    """Return the problems of a cluster file, without the path before each."""
    file = folder / "mine.yaml"
    file.write_text(text)
    try:
        check_cluster_file(file)
    except BadFileError as error:
        return str(error).replace(f"{file}:", "").splitlines()
    return []


def ours(folder: Path, old: str = "", new: str = "") -> str:
    """Generate a file from a fleet file, with one text replaced."""
    text = ClusterTemplate(TEMPLATE).text(load_fleet(write_fleet(folder)).cluster())
    assert old in text
    return text.replace(old, new, 1)


def test_file_that_ray_completes_is_valid(tmp_path: Path) -> None:
    assert problems(tmp_path, RAYS_OWN) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("preemptible: true", "preemptable: true", "schedulingConfig.preemptable: Google Cloud knows no such field"),
        ("runtimeVersion:", "runtimeVersions:", "runtimeVersions: Google Cloud knows no such field: did you mean"),
        ("preemptible: true", 'preemptible: "yes"', "schedulingConfig.preemptible: 'yes' is not true or false"),
        ("acceleratorType: v4-8", "acceleratorType: v4x8", "`acceleratorType` should match v(generation)-(cores/"),
        ("      acceleratorType: v4-8\n", "", "node_config: Invalid node. For a Compute instance"),
        ("      machineType: n2-standard-8\n", "", "head_default.node_config: Invalid node."),
        ("diskSizeGb: 200", "diskSize: 200", "disks.0.initializeParams.diskSize: Google Cloud knows no such"),
        ("diskSizeGb: 200", "diskSizeGb: [200]", "diskSizeGb: [200] is not text"),
        ("autoDelete: false", "autodelete: false", "disks.1.autodelete: Google Cloud knows no such field: did"),
        ("machineType: n2-standard-8", "status: UP\n      machineType: n2-standard-8", "sets this field itself: leave"),
        ("metadata:\n        items:", "metadata:\n        itms:", "metadata.itms: Google Cloud knows no such field"),
        ("max_workers: 1024", "max_worker: 1024", "max_worker: there is no such field: did you mean max_workers"),
        ("CPU: 120", "CPU: many", "resources.CPU: 'many' is text, where a whole number belongs."),
        ("file_mounts: {}\n", "", "the file: section 'file_mounts' is missing: for an external provider Ray fills in"),
        ("cluster_synced_files: []\n", "", "section 'cluster_synced_files' is missing"),
        ("head_node_type: head_default", "head_node_type: other", "Ray refuses the file: `head_node_type` must be"),
        ("min_workers: 4", "min_workers: 4000", "Ray refuses the file: The specified global `max_workers` is smaller"),
        ("  type: external\n", "  type: external\n  gcp_credentials: {type: service_account}\n", "Ray would write"),
        ("  type: external\n", "", "provider: 'type' is missing: add it e.g. aws, azure, gcp"),
        ("container_name: ray_docker", 'container_name: ""', "Must provide a container & image name"),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_by_a_sentence_with_its_place(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert says in "\n".join(problems(tmp_path, ours(tmp_path, old, new)))


def test_problem_has_the_line_of_its_field(tmp_path: Path) -> None:
    text = ours(tmp_path, "preemptible: true", "preemptable: true")
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "preemptable" in line)
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(f"{line}: available_node_types.tpu_worker.node_config.")


def test_file_for_another_cloud_is_checked_by_ray_alone(tmp_path: Path) -> None:
    text = (
        "cluster_name: mine\nprovider: {type: aws, region: us-west-2}\nmax_workers: 2\nhead_node_type: head\n"
        "available_node_types: {head: {resources: {CPU: 1}, node_config: {InstanceType: m5.large}}}\n"
    )
    assert problems(tmp_path, text) == []
    assert "there is no such field" in problems(tmp_path, f"{text}colour: red\n")[0]


def test_unknown_cloud_and_problems_of_each_type_are_reported(tmp_path: Path) -> None:
    text = RAYS_OWN.replace("type: gcp", "type: gpc")
    assert problems(tmp_path, text) == ["1: Ray refuses the file: Unsupported node provider: gpc"]
    assert len(problems(tmp_path, RAYS_OWN.replace("machineType", "machine").replace("scheduling:", "schedule:"))) == 2


@pytest.mark.parametrize("text", ["", "[]", "a", "provider: gcp", "cluster_name: a\nprovider: {type: external}\n"])
def test_file_of_another_form_is_refused_in_sentences(text: str, tmp_path: Path) -> None:
    assert (lines := problems(tmp_path, text))
    assert all(line.split(":")[0].isdecimal() and line.endswith(".") for line in lines)
