"""Google Cloud's zones, as its list of them was at the end of 2025: to notice a typo, never to refuse a zone.

Google adds regions several times a year, so that a zone is not known here says only that it should be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from tradewind.fleet.clusters import FleetCluster

_LETTERS: Final = {
    "us-central1": "abcf", "us-central2": "abcd", "us-east1": "bcd", "europe-west1": "bcd",
}  # fmt: skip
"""Of the regions whose zones are not a, b and c."""
_REGIONS: Final = (
    "africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2", "asia-northeast3", "asia-south1",
    "asia-south2", "asia-southeast1", "asia-southeast2", "australia-southeast1", "australia-southeast2",
    "europe-central2", "europe-north1", "europe-north2", "europe-southwest1", "europe-west1", "europe-west10",
    "europe-west12", "europe-west2", "europe-west3", "europe-west4", "europe-west6", "europe-west8", "europe-west9",
    "me-central1", "me-central2", "me-west1", "northamerica-northeast1", "northamerica-northeast2",
    "northamerica-south1", "southamerica-east1", "southamerica-west1", "us-central1", "us-central2", "us-east1",
    "us-east4", "us-east5", "us-south1", "us-west1", "us-west2", "us-west3", "us-west4",
)  # fmt: skip
ZONES: Final = (
    *(f"{region}-{letter}" for region in _REGIONS for letter in _LETTERS.get(region, "abc")),
    "us-central1-ai1a", "us-south1-ai1b",
)  # fmt: skip


def zone_doubts(clusters: Iterable[FleetCluster]) -> Iterator[str]:
    """A sentence for each cluster in a zone that is not known here, with the nearest of those that are."""
    for cluster in clusters:
        if cluster.zone not in ZONES:
            near = get_close_matches(cluster.zone, ZONES, n=2)
            hint = f": did you mean {' or '.join(near)}?" if near else "."
            yield (
                f"Cluster {cluster.name}, zone: {cluster.zone} is no zone of Google Cloud that is known here{hint} "
                "If it is a new one, there is nothing to do."
            )
