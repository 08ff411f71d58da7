"""Compute Engine on the loopback, through Google's own Python client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from tests.support.compute import BadFilterError, parse_filter
from tests.support.google import LocalGoogle
from tests.support.waiting import until
from tradewind.fleet.cloud.google_api import google_api

PLACE = {"project": "p", "zone": "us-central2-b"}


@pytest.fixture
def google() -> Iterator[LocalGoogle]:
    server = LocalGoogle()
    server.start()
    yield server
    server.end_all()
    server.stop()


@pytest.fixture
def compute(google: LocalGoogle) -> Any:
    return google_api("compute", google.url)


def insert(compute: Any, name: str, **more: Any) -> dict[str, Any]:
    """Create an instance and return the completed operation."""
    operation = compute.instances().insert(**PLACE, body={"name": name, **more}).execute()["name"]
    return dict(until(lambda: done(compute.zoneOperations().get(**PLACE, operation=operation).execute())))


def done(operation: dict[str, Any]) -> dict[str, Any] | None:
    return operation if operation["status"] == "DONE" else None


def refused(request: Any) -> tuple[int, str]:
    """Return the status and the reason of a refusal."""
    with pytest.raises(HttpError) as caught:
        request.execute()
    return caught.value.resp.status, caught.value.error_details[0]["reason"]


def test_instance_has_addresses_until_it_is_deleted(google: LocalGoogle, compute: Any) -> None:
    nat = [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}]
    assert "error" not in insert(compute, "a", labels={"x": "1"}, networkInterfaces=nat)
    instance = compute.instances().get(**PLACE, instance="a").execute()
    (interface,) = instance["networkInterfaces"]
    assert instance["status"] == "RUNNING" and interface["accessConfigs"][0]["natIP"] == interface["networkIP"]
    assert refused(compute.instances().insert(**PLACE, body={"name": "a"})) == (409, "alreadyExists")
    assert refused(compute.instances().insert(**PLACE, body={"name": "A"})) == (400, "invalid")
    body = {"labels": {"x": "2"}, "labelFingerprint": instance["labelFingerprint"]}
    compute.instances().setLabels(**PLACE, instance="a", body=body).execute()
    assert refused(compute.instances().setLabels(**PLACE, instance="a", body=body)) == (412, "conditionNotMet")
    compute.instances().delete(**PLACE, instance="a").execute()
    until(lambda: not google.compute.state.resources)
    assert refused(compute.instances().get(**PLACE, instance="a")) == (404, "notFound")


@pytest.mark.slow
def test_lists_are_filtered_and_have_pages(compute: Any) -> None:
    for number in range(5):
        insert(compute, f"n{number}", labels={"ray-cluster-name": "a" if number % 2 else "a-b"})
    found, request = [], compute.instances().list(**PLACE, maxResults=2, filter="labels.ray-cluster-name = a-b")
    pages = 0
    while request is not None:
        answer = request.execute()
        found += [instance["name"] for instance in answer.get("items", [])]
        request, pages = compute.instances().list_next(request, answer), pages + 1
    assert (found, pages) == (["n0", "n2", "n4"], 2)
    assert refused(compute.instances().list(**PLACE, filter="labels.x =")) == (400, "invalid")


def test_disk_outlives_its_machine_and_has_one_at_a_time(google: LocalGoogle, compute: Any) -> None:
    disks = [{"source": "projects/p/zones/us-central2-b/disks/d", "autoDelete": False}]
    assert refused(compute.instances().insert(**PLACE, body={"name": "a", "disks": disks})) == (404, "notFound")
    compute.disks().insert(**PLACE, body={"name": "d", "sizeGb": "10"}).execute()
    insert(compute, "a", disks=disks)
    in_use = (400, "resourceInUseByAnotherResource")
    assert refused(compute.instances().insert(**PLACE, body={"name": "b", "disks": disks})) == in_use
    assert refused(compute.disks().delete(**PLACE, disk="d")) == in_use
    compute.instances().delete(**PLACE, instance="a").execute()
    until(lambda: len(google.compute.state.resources) == 1)
    assert compute.disks().get(**PLACE, disk="d").execute()["status"] == "READY"


def test_quota_stock_out_and_permission_errors_match_google(google: LocalGoogle, compute: Any) -> None:
    faults = google.compute.state.faults
    faults.quota = 0
    assert insert(compute, "a")["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"
    faults.quota, faults.is_out = None, True
    assert insert(compute, "a")["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    faults.denied.add("compute.instances.list")
    assert refused(compute.instances().list(**PLACE)) == (403, "forbidden")
    faults.denied.clear()
    assert compute.instances().list(**PLACE).execute() == {"kind": "compute#list"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("status = RUNNING", True),
        ("status != RUNNING", False),
        ("(labels.a = 1) AND (NOT labels.tpu_cores:*)", True),
        ("((labels.a = 2)) OR (labels.b:*)", False),
        ("(status = STOPPED) OR (status = RUNNING) AND (labels.a = 1)", True),
        ('name : "ea"', True),
        ("(status eq RUNNING) (labels.a ne 2)", True),
        ("(status = RUNNING) (labels.a = 2)", False),
    ],
)
def test_filters_have_googles_meaning(text: str, fits: bool) -> None:
    assert parse_filter(text)({"name": "head", "status": "RUNNING", "labels": {"a": "1"}}) is fits


@pytest.mark.parametrize("text", ["labels.a", "(a = 1", "a = 1)", "AND", "a ~ 1"])
def test_invalid_filter_is_refused(text: str) -> None:
    with pytest.raises(BadFilterError):
        parse_filter(text)
