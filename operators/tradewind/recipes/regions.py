"""A training writes gigabytes every few minutes: all its buckets must be in the region of its machines.

Only what is known to be elsewhere is refused. The region is that of the Google Cloud machine that this runs on; on any
other machine, and for a bucket whose location nobody tells, nothing is checked.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

_METADATA_VARIABLE: Final = "GCE_METADATA_HOST"
_PRODUCT: Final = Path("/sys/class/dmi/id/product_name")
_SCHEMES: Final = ("gs://", "gcs://")
_ANSWER_SECONDS: Final = 5.0
_DUAL_REGIONS: Final[Mapping[str, tuple[str, str]]] = {
    "nam4": ("us-central1", "us-east1"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "asia1": ("asia-northeast1", "asia-northeast2"),
}
_MULTI_REGIONS: Final[Mapping[str, str]] = {"us": "us-", "eu": "europe-", "asia": "asia-"}


def check_regions(paths: Mapping[str, str | None]) -> None:
    """Raise ``ValueError`` naming the first field whose path is in a bucket of another region than this machine's."""
    buckets = {field: bucket for field, path in paths.items() if (bucket := _bucket(path))}
    region = region_of_this_machine() if buckets else None
    for field, bucket in buckets.items() if region else ():
        location = _location(bucket)
        if location is not None and not any(_covers(place, str(region)) for place in location.split("+")):
            raise ValueError(
                f"{field}: bucket {bucket} is in {location} and the machines are in {region}: use a bucket of their "
                "region, since every checkpoint would cross over."
            )


@cache
def region_of_this_machine() -> str | None:
    """The region, such as ``us-central2``; None on a machine that is not Google Cloud's."""
    host = os.environ.get(_METADATA_VARIABLE) or ("metadata.google.internal" if _is_google() else None)
    if host is None:
        return None
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/zone", headers={"Metadata-Flavor": "Google"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            zone = answer.read().decode().strip().rpartition("/")[2]
    except OSError as error:
        print(f"The regions of buckets are not checked: {host} does not say which zone this is ({error}).")
        return None
    return zone.rpartition("-")[0] or None


def _is_google() -> bool:
    try:
        return "Google" in _PRODUCT.read_text()
    except OSError:
        return False


def _bucket(path: str | None) -> str | None:
    for scheme in _SCHEMES:
        if path is not None and path.startswith(scheme):
            return path.removeprefix(scheme).partition("/")[0] or None
    return None


def _location(bucket: str) -> str | None:
    """Where the bucket is, in small letters; the regions of a dual region joined by ``+``; None if nobody tells."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        found = _client().get_bucket(bucket, timeout=_ANSWER_SECONDS)
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        print(f"The region of bucket {bucket} is not checked, as it does not say where it is: {error}")
        return None
    location = "+".join(found.data_locations or []) or found.location
    return str(location).lower() if location else None


def _client() -> Any:
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.storage import Client  # type: ignore[import-untyped]

    try:
        return Client(project=None)
    except DefaultCredentialsError:
        return Client.create_anonymous_client()


def _covers(place: str, region: str) -> bool:
    if place in _MULTI_REGIONS:
        return region.startswith(_MULTI_REGIONS[place])
    return region in _DUAL_REGIONS.get(place, (place,))
