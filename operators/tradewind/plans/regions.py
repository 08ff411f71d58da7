"""Cross-region reads: a step reads buckets of its own region, or those explicitly allowed.

Only reads that are known to leave the region are refused. Steps with an unknown region, buckets with an unknown
location, local paths, ``mirror://`` paths and stores other than Google Cloud's are not checked.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.steps import ExperimentError, Lazy, ResolvedStep
from tradewind.steps.amounts import human_size

_SCHEMES: Final = ("gs://", "gcs://")
_DUAL_REGIONS: Final[Mapping[str, tuple[str, str]]] = {
    "nam4": ("us-central1", "us-east1"),
    "eur4": ("europe-north1", "europe-west4"),
    "eur5": ("europe-west1", "europe-west2"),
    "eur7": ("europe-west2", "europe-west3"),
    "eur8": ("europe-west3", "europe-west6"),
    "asia1": ("asia-northeast1", "asia-northeast2"),
}
_MULTI_REGIONS: Final[Mapping[str, str]] = {"us": "us-", "eu": "europe-", "asia": "asia-"}
"""Location -> prefixes of the names of its regions."""
_NOT_IN_EU: Final = ("europe-west2", "europe-west6", "europe-west12")
"""European regions outside the multi-region EU."""


@dataclass(frozen=True)
class StepReads:
    """What a step that will run reads, and from which region; None if the region is unknown."""

    name: str
    region: str | None
    paths: tuple[str, ...]


@dataclass(frozen=True)
class CrossRegionRead:
    """One path that a step reads from another region; ``size`` in bytes, None if nothing exists there yet."""

    step: str
    region: str
    path: str
    location: str
    size: int | None

    def __str__(self) -> str:
        size = "of unknown size" if self.size is None else human_size(self.size)
        return f"step {self.step!r} in {self.region} reads {self.path} ({size}) in {self.location}"


class CrossRegionReadError(ExperimentError):
    """Steps would read from buckets in other regions, which is slow and billed per gigabyte."""

    def __init__(self, reads: Sequence[CrossRegionRead]) -> None:
        self.reads = tuple(reads)
        known = [read.size for read in {read.path: read for read in reads}.values() if read.size is not None]
        total = f" ({human_size(sum(known))} in all)" if len(known) > 1 else ""
        lines = "".join(f"\n  {read}" for read in reads)
        super().__init__(
            f"Reading across regions is slow and costs money{total}: run these steps where their inputs are, give the "
            "paths as mirrored(path, budget_gb=...), which copies them once from the prefixes in [tradewind] "
            "mirror_prefixes or the fleet file, or allow it with "
            f"experiment_dag(allow_cross_region=({reads[0].step!r},)), which takes step names and path prefixes:{lines}"
        )


def paths_read(step: ResolvedStep) -> tuple[str, ...]:
    """Return the bucket paths in the filled-in config of ``step``, except those in its own output."""
    found = dict.fromkeys(text for text in _texts(step.config) if bucket_of(text) is not None)
    return tuple(path for path in found if not _is_below(path, step.output_path))


def bucket_of(path: str) -> str | None:
    """Return the Google Cloud Storage bucket of ``path``, if it is in one."""
    return path.partition("://")[2].partition("/")[0] or None if path.startswith(_SCHEMES) else None


def is_inside(region: str, location: str) -> bool:
    """Whether ``region`` reads a bucket at ``location`` without leaving the region.

    A location is a region, a multi-region (``EU``), a predefined dual region (``NAM4``), or the regions of a custom one
    joined by ``+``; case is ignored.
    """
    return any(_covers(place, region.lower()) for place in location.lower().split("+"))


def cross_region_reads(
    steps: Iterable[StepReads],
    location_of: Callable[[str], str | None],
    allowed: Sequence[str] = (),
    size_of: Callable[[str], int | None] = lambda path: None,
) -> list[CrossRegionRead]:
    """Return reads that leave their step's region and that ``allowed`` (step names, path prefixes) omits.

    ``location_of`` is called only for buckets of steps with a known region, ``size_of`` once per refused path.
    """
    found = []
    sizes: dict[str, int | None] = {}
    for step in steps:
        if step.region is None or step.name in allowed:
            continue
        for path in step.paths:
            bucket = bucket_of(path)
            location = location_of(bucket) if bucket is not None else None
            if location is None or is_inside(step.region, location) or any(_is_below(path, a) for a in allowed):
                continue
            if path not in sizes:
                sizes[path] = size_of(path)
            found.append(CrossRegionRead(step.name, step.region, path, location.lower(), sizes[path]))
    return found


def _covers(place: str, region: str) -> bool:
    if place in _MULTI_REGIONS:
        return region.startswith(_MULTI_REGIONS[place]) and not (place == "eu" and region in _NOT_IN_EU)
    return region in _DUAL_REGIONS.get(place, (place,))


def _is_below(path: str, folder: str) -> bool:
    folder = folder.rstrip("/")
    return path == folder or path.startswith(folder + "/")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, os.PathLike):
        yield os.fspath(value)
    elif isinstance(value, Lazy):
        yield from _texts(value.kwargs)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, (Mapping, list, tuple, set, frozenset)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)
