"""A training writes gigabytes every few minutes: all its buckets must be in the region of its machines.

Only what is known to be elsewhere is refused. The region is that of the Google Cloud machine that this runs on; on any
other machine, and for a bucket whose location nobody tells, nothing is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from tradewind.cloud_tpu.instance_metadata import zone
from tradewind.plans.places.regions import bucket_of, is_inside
from tradewind.storage.bucket_regions import bucket_region

_ANSWER_S: Final = 5.0


def check_regions(paths: Mapping[str, str | None], otherwise: str = "") -> None:
    """Raise ``ValueError`` naming the first field whose path is in a bucket of another region than this machine's.

    ``otherwise`` is what else can be done, as the end of a sentence.
    """
    buckets = {field: bucket for field, path in paths.items() if path and (bucket := bucket_of(path))}
    region = region_of_this_machine() if buckets else None
    for field, bucket in buckets.items() if region else ():
        location = _location(bucket)
        if location is not None and not is_inside(str(region), location):
            raise ValueError(
                f"{field}: bucket {bucket} is in {location} and the machines are in {region}: use a bucket of their "
                f"region, since every checkpoint would cross over{otherwise}."
            )


@cache
def region_of_this_machine() -> str | None:
    """The region, such as ``us-central2``; None on a machine that is not Google Cloud's."""
    here = zone(_ANSWER_S)
    return here.rpartition("-")[0] or None if here else None


def _location(bucket: str) -> str | None:
    """Where the bucket is; None if nobody tells."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        return bucket_region(bucket, timeout=_ANSWER_S)
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        print(f"The region of bucket {bucket} is not checked, as it does not say where it is: {error}")
        return None
