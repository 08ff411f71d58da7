"""Locations of a training's data: buckets of other regions, and missing token caches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.caches import write_cache
from tradewind.recipes.lm.config import LevanterTrainConfig
from tradewind.recipes.lm.data_locations import check_places, check_regions, region_of_this_machine
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback_server import Answer, HttpRequest, LoopbackServer


class ZoneServer(LoopbackServer):
    """Zone answers of a Google Cloud machine's metadata server."""

    def answer(self, call: HttpRequest) -> Answer:
        if call.path != "/computeMetadata/v1/instance/zone" or call.headers.get("Metadata-Flavor") != "Google":
            return self.refusal("zone", 404, "Not found")
        return Answer("zone", body=b"projects/123/zones/us-central2-b", headers={"Metadata-Flavor": "Google"})

    def refusal(self, kind: str, status: int, message: str) -> Answer:
        return Answer(kind, status, message.encode())


@pytest.fixture(autouse=True)
def zone(cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneServer]:
    server = ZoneServer()
    server.start()
    monkeypatch.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
    region_of_this_machine.cache_clear()
    yield server
    region_of_this_machine.cache_clear()
    server.stop()


def test_only_bucket_in_other_region_is_refused(cloud: LocalCloudStorage) -> None:
    for name, location in (("here", "US-CENTRAL2"), ("wide", "US"), ("away", "europe-west4"), ("dual", "NAM4")):
        cloud.buckets.create(name, location)
    check_regions(
        {
            "output_path": "gs://here/out",
            "cache_path": "gs://wide/tokens",
            "tokenizer_path": "gs://unknown/tokenizer",
            "initialize_from": None,
            "temporary_checkpoint_path": "/tmp/local",
        }
    )
    with pytest.raises(ValueError, match="output_path: bucket away is in europe-west4 and the machines are in us-cent"):
        check_regions({"cache_path": "gs://here/tokens", "output_path": "gs://away/out"})
    with pytest.raises(ValueError, match="temporary_checkpoint_path: bucket dual is in nam4"):
        check_regions({"temporary_checkpoint_path": "gs://dual/temporary"})


def test_local_paths_need_no_metadata_server(zone: ZoneServer) -> None:
    check_regions({"output_path": "/local"})
    assert not zone.requests


def test_machine_outside_google_cloud_skips_region_check(
    cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.buckets.create("far", "asia-east1")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    check_regions({"output_path": "gs://abroad/out"})
    assert region_of_this_machine() is None


@dataclass
class Source:
    train_urls: list[str]
    validation_urls: list[str] = field(default_factory=list)


@dataclass
class Component:
    source: Any
    cache_dir: str
    flat_cache: bool = False
    format: Any = None
    pack: bool | None = None


@dataclass
class Data:
    components: dict[str, Component]
    train_weights: dict[str, float]
    tokenizer: str
    cache_dir: str | None = None
    auto_build_caches: bool = True


@dataclass
class Given:
    """Path fields of a Levanter config, and the length of its sequences."""

    data: Data
    initialize_from_checkpoint_path: str | None = None
    train_seq_len: int = 16


def test_rerun_not_advised_if_only_validation_split_missing(tmp_path: Path) -> None:
    data = Data({"web": Component(None, str(tmp_path))}, {"web": 1.0}, "tokenizer")
    config = LevanterTrainConfig(Given(data), "out")
    for split, sentence in (
        ("train", f"train at {tmp_path}/train: run the step that makes it, since its component has no"),
        ("validation", f"validation at {tmp_path}/validation, and there is one for train: give its step validation_p"),
    ):
        expected = "train_config.data.components['web']: there is no finished token cache for " + sentence
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}"):
            check_places(config)
        write_cache(tmp_path / split)


def test_levanter_config_may_list_out_of_region_fields(cloud: LocalCloudStorage, tmp_path: Path) -> None:
    for name, location in (("nearby", "US-CENTRAL2"), ("abroad", "europe-west4")):
        cloud.buckets.create(name, location)
    data = Data(
        {"web": Component(Source(["gs://abroad/a.jsonl"]), str(tmp_path))}, {"web": 1.0}, "gs://nearby/tokenizer"
    )
    given = Given(data, "gs://abroad/checkpoints/step-3")

    def check(*allowed: str) -> None:
        check_places(LevanterTrainConfig(given, "gs://nearby/out", allow_out_of_region=allowed))

    begin = "train_config.initialize_from_checkpoint_path: bucket abroad is in europe-west4 .*; or name the field in"
    source = "train_config.data.components.web.source.train_urls.0: bucket abroad is in europe-west4"
    with pytest.raises(ValueError, match=source):
        check("initialize_from_checkpoint_path")  # the training would read these texts: they have no token cache
    write_cache(tmp_path / "train")
    with pytest.raises(ValueError, match=begin):
        check()
    with pytest.raises(ValueError, match=begin):
        check("data")
    check("data", "train_config.initialize_from_checkpoint_path")
