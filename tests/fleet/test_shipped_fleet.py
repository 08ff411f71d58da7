"""Files in ``infra`` are fresh, valid, and match the table of Marin's clusters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fleet.fleets import REPOSITORY, SHIPPED
from tradewind.fleet.cluster_file_checks import check_cluster_file
from tradewind.fleet.cluster_files import GeneratedFiles
from tradewind.fleet.clusters import Fleet
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.yaml_schema import fleet_schema

FILES = sorted((SHIPPED.parent / "clusters").glob("*.yaml"))
PAGE = (REPOSITORY / "docs" / "fleet-file.md").read_text()
MARINS = {
    "us-central2": ("us-central2-b", "v4-8", 4, {}),
    "us-central2-staging": ("us-central2-b", "v4-8", 4, {}),
    "big-run": ("us-central2-b", "v4-8", 0, {}),
    "us-central1": ("us-central1-a", "v5p-8", 13, {"v5p-16": 1, "v5p-32": 1, "v5p-64": 1}),
    "us-east5-a": ("us-east5-a", "v5p-8", 8, {"v5p-64": 4}),
    "eu-west4": ("europe-west4-b", "v5litepod-4", 4, {"v5litepod-128": 1}),
    "us-west4": ("us-west4-a", "v5litepod-4", 0, {}),
    "us-east1": ("us-east1-d", "v6e-4", 0, {}),
    "us-east5": ("us-east5-b", "v6e-4", 0, {}),
    "eu-west4-a": ("europe-west4-a", "v6e-4", 0, {"v6e-128": 2}),
}
"""Name → zone, base type with its minimum, and other slices that stay up."""


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return load_fleet(SHIPPED)


def test_shipped_cluster_files_are_current(fleet: Fleet) -> None:
    files = GeneratedFiles.of(fleet)
    assert (files.stale, files.surplus) == ((), ()), "run: tradewind cluster update-configs"
    assert len(FILES) == len(fleet.clusters)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_ray_and_google_accept_every_cluster_file(file: Path) -> None:
    check_cluster_file(file)


def test_shipped_fleet_is_marins_and_has_serving_clusters(fleet: Fleet) -> None:
    found = {
        name: (one.zone, one.pools[0].kind.name, one.pools[0].minimum,
               {pool.kind.name: pool.minimum for pool in one.pools[1:] if pool.minimum})
        for name, one in fleet.clusters.items()
        if "vllm" not in name
    }  # fmt: skip
    assert found == MARINS
    assert fleet.default_cluster == "us-central2"
    assert fleet.cluster("us-central2-staging").staging and fleet.cluster("big-run").owner
    serving = {name for name, cluster in fleet.clusters.items() if cluster.image == "tradewind_vllm"}
    assert serving == set(fleet.clusters) - set(MARINS) and "us-east5-b-vllm" in serving


def test_page_explains_every_field() -> None:
    definitions = fleet_schema()["$defs"]
    fields = set(definitions["cluster"]["properties"])
    assert fields == set(definitions) - {"cluster"}
    rows = dict(re.findall(r"^\| `(\w+)`( †)? \|", PAGE, re.MULTILINE))
    assert fields <= set(rows)
    shared = set(fleet_schema()["properties"]["defaults"]["properties"])
    assert {field for field in fields if not rows[field]} == shared
    for name, field in definitions.items():
        if isinstance(field.get("default"), (str, int)) and not isinstance(field["default"], bool):
            assert re.search(rf"^\| `{name}` \| `?{re.escape(str(field['default']))}`? \|", PAGE, re.MULTILINE), name


def test_example_of_the_page_is_a_valid_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    assert set(load_fleet(tmp_path / "fleet.yaml").clusters) == {"us-central2", "us-central1"}


@pytest.mark.slow
def test_cluster_files_hold_no_secret_or_credentials(fleet: Fleet) -> None:
    for file in FILES:
        text = file.read_text()
        assert "gcp_credentials" not in text
        options = json.dumps(yaml.safe_load(text)["docker"])
        assert not any(secret in options for secret in fleet.clusters[file.stem].environment)


@pytest.mark.slow
def test_loading_fleet_imports_no_ray_google_or_airflow() -> None:
    code = (
        "import pathlib, sys\n"
        "before = set(sys.modules)\n"  # Google's packages import their namespace at every start
        "from tradewind.fleet.fleet_file import load_fleet\n"
        "from tradewind.fleet.cluster_files import GeneratedFiles\n"
        "import tradewind.fleet.cluster_file_checks\n"
        f"GeneratedFiles.of(load_fleet(pathlib.Path({str(SHIPPED)!r})))\n"
        "heavy = {'ray', 'airflow', 'googleapiclient', 'google.cloud'} & (sys.modules.keys() - before)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
