"""Sources of mirrored paths: the deployment's setting, else the fleet's buckets; never a guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tradewind.deployment.fleet import deployment_mirrors, fleet_bucket_regions
from tradewind.plans.prefixes import MIRROR_VARIABLE
from tradewind.plans.regions import paths_read
from tradewind.serialization.errors import SpecError
from tradewind.steps import ExecutorStep, mirrored, resolve
from tradewind.storage import UnusablePathError
from tradewind.tasks.step_job import claimed_spec

SETTING = "AIRFLOW__TRADEWIND__MIRROR_PREFIXES"


@dataclass(frozen=True)
class Config:
    value: Any


def work(config: Config) -> None: ...


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (MIRROR_VARIABLE, SETTING, "TRADEWIND_FLEET"):
        monkeypatch.delenv(name, raising=False)
    fleet_bucket_regions.cache_clear()
    yield
    fleet_bucket_regions.cache_clear()


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.yaml"
    account = "robot@my-project.iam.gserviceaccount.com"
    file.write_text(
        "default_cluster: us\n"
        f"defaults: {{project: my-project, head_service_account: {account}, worker_service_account: {account}}}\n"
        "clusters:\n"
        "  us: {zone: us-central2-b, generation: v4, bucket: near}\n"
        "  eu: {zone: europe-west4-b, generation: v5e, bucket: far}\n"
    )
    monkeypatch.setenv("TRADEWIND_FLEET", str(file))


def test_mirror_prefixes_environment_over_config_over_fleet_file(fleet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert deployment_mirrors() == ("gs://near", "gs://far")
    monkeypatch.setenv(SETTING, "gs://a/x,\n gs://b/x ,")
    assert deployment_mirrors() == ("gs://a/x", "gs://b/x")
    monkeypatch.setenv(MIRROR_VARIABLE, "/data")
    assert deployment_mirrors() == ("/data",)


def test_mirror_prefixes_are_absolute_and_none_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deployment_mirrors() == ()
    monkeypatch.setenv(SETTING, "gs://a, data")
    with pytest.raises(UnusablePathError, match=r"^mirror_prefixes in the \[tradewind\] section .* is relative"):
        deployment_mirrors()


def test_mirrored_config_is_claimed_without_cross_region_read(fleet: None, tmp_path: Path) -> None:
    step = ExecutorStep("train", work, Config(mirrored("gs://far/corpus")))
    resolved = resolve([step], "gs://near").of(step)
    assert paths_read(resolved) == ()
    spec = claimed_spec(resolved, Path(__file__).parents[2])
    assert spec.load_config() == Config("gs://near/corpus")
    assert spec.mirrors[0].sources == ("gs://far",)
    other = ExecutorStep("train", work, Config(mirrored("gs://nobody/corpus")))
    with pytest.raises(SpecError, match=r"^Step 'train': config.value: .* \(gs://near, gs://far\): .*mirror_prefixes"):
        claimed_spec(resolve([other], "gs://near").of(other), Path(__file__).parents[2])
