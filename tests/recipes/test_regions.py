"""Buckets in another region than the machines are refused; what nobody tells is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tradewind.recipes.regions import check_regions, region_of_this_machine
from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage
from tradewind.rehearsal.cloud.loopback import Answer, HttpRequest, LoopbackServer


class ZoneServer(LoopbackServer):
    """The metadata that a Google Cloud machine reads, as far as its zone goes."""

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


def test_only_a_bucket_that_is_known_to_be_elsewhere_is_refused(cloud: LocalCloudStorage) -> None:
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


def test_without_a_bucket_nobody_is_asked(zone: ZoneServer) -> None:
    check_regions({"output_path": "/local"})
    assert not zone.requests


def test_a_machine_that_is_not_of_google_cloud_checks_nothing(
    cloud: LocalCloudStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.buckets.create("far", "asia-east1")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    check_regions({"output_path": "gs://far/out"})
    assert region_of_this_machine() is None
