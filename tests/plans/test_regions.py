"""A plan reports reads from other regions with sizes and refuses those that users do not allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest

from tradewind.plans.regions import (
    CrossRegionRead,
    CrossRegionReadError,
    StepReads,
    bucket_of,
    cross_region_reads,
    is_inside,
    paths_read,
)
from tradewind.steps import (
    ExecutorStep,
    ExperimentError,
    InputName,
    lazy,
    mirrored,
    output_path_of,
    resolve,
    this_output_path,
    versioned,
)
from tradewind.steps.amounts import human_size

HERE, THERE = "gs://marin-us-central2/data", "gs://marin-eu-west4/data"
LOCATIONS = {"marin-us-central2": "us-central2", "marin-eu-west4": "europe-west4"}


@dataclass(frozen=True)
class Config:
    value: Any
    output_path: Any = None


def reads(*paths: str, region: str | None = "us-central2", name: str = "train") -> list[StepReads]:
    return [StepReads(name, region, paths)]


def refused(steps: list[StepReads], allowed: Sequence[str] = ()) -> list[str]:
    return [read.path for read in cross_region_reads(steps, LOCATIONS.get, allowed)]


# ---- reads of a step


def test_step_reads_the_bucket_paths_in_its_config() -> None:
    raw = ExecutorStep("raw", None, None)
    later = ExecutorStep("later", None, None)
    config = Config(
        {
            "input": output_path_of(raw, "shards"),
            "pseudo": later.nonblocking(),
            "hard_coded": InputName.hardcoded("gs://elsewhere/a"),
            "relative": InputName.hardcoded("raw/b"),
            "plain": ["gs://elsewhere/c", ("gcs://elsewhere/d",), {"gs://elsewhere/e"}],
            "versioned": versioned("gs://elsewhere/f"),
            "lazy": lazy("a.b:C", path="gs://elsewhere/g"),
            "again": "gs://elsewhere/a",
        },
        this_output_path("checkpoints"),
    )
    step = ExecutorStep("train", None, config)
    experiment = resolve([step], "gs://prefix")
    assert paths_read(experiment.of(step)) == (
        f"{experiment.of(raw).output_path}/shards",
        experiment.of(later).output_path,
        "gs://elsewhere/a",
        "gs://prefix/raw/b",
        "gs://elsewhere/c",
        "gcs://elsewhere/d",
        "gs://elsewhere/e",
        "gs://elsewhere/f",
        "gs://elsewhere/g",
    )


def test_local_mirrored_and_non_gcs_paths_read_no_bucket() -> None:
    raw = ExecutorStep("raw", None, None)
    values = [output_path_of(raw), mirrored("gs://elsewhere/a"), "s3://b/c", "/d", PurePosixPath("e"), 3, None, "gs://"]
    step = ExecutorStep("train", None, Config(values, this_output_path()))
    assert paths_read(resolve([step], "/prefix").of(step)) == ()
    assert [bucket_of(path) for path in ("gs://a/b/c", "gs://a", "gcs://a/b")] == ["a", "a", "a"]
    assert [bucket_of(path) for path in ("s3://a/b", "/a", "gs:///b")] == [None, None, None]


# ---- reads within a region


@pytest.mark.parametrize(
    ("location", "inside", "outside"),
    [
        ("US-CENTRAL2", "us-central2", "us-central1"),
        ("us", "us-central2", "europe-west4"),
        ("EU", "EUROPE-WEST4", "europe-west2"),  # excludes London and Zurich
        ("ASIA", "asia-northeast1", "australia-southeast1"),
        ("NAM4", "us-central1", "us-central2"),
        ("ASIA1", "asia-northeast2", "asia-northeast3"),
        ("us-east1+us-east5", "us-east5", "us-east4"),
    ],
)
def test_location_contains_its_regions_of_google_cloud(location: str, inside: str, outside: str) -> None:
    assert is_inside(inside, location) and not is_inside(outside, location)


# ---- refused reads


def test_only_reads_known_to_leave_the_region_are_refused() -> None:
    assert refused(reads(HERE, THERE)) == [THERE]
    assert refused(reads(HERE, THERE, region="europe-west4")) == [HERE]
    assert refused(reads("gs://unknown/a", HERE)) == []
    assert refused(reads("gs://any/a", THERE, region=None)) == []


@pytest.mark.parametrize("allowed", ["train", THERE, "gs://marin-eu-west4", "gs://marin-eu-west4/", "gs://"])
def test_cross_region_read_allowed_by_step_or_path_passes(allowed: str) -> None:
    assert refused(reads(THERE), allowed=(allowed,)) == []


@pytest.mark.parametrize("allowed", ["trai", "gs://marin-eu-west4/da", f"{THERE}/deeper"])
def test_part_of_a_name_allows_no_read(allowed: str) -> None:
    assert refused(reads(THERE), allowed=(allowed,)) == [THERE]


def test_size_is_read_once_per_refused_path() -> None:
    paths: list[str] = []

    def size_of(path: str) -> int:
        paths.append(path)
        return 15

    found = cross_region_reads(reads(HERE, THERE) + reads(THERE, name="evaluate"), LOCATIONS.get, size_of=size_of)
    assert paths == [THERE]
    assert [(read.step, read.size) for read in found] == [("train", 15), ("evaluate", 15)]


def test_cross_region_error_lists_reads_sizes_and_remedy() -> None:
    refused = [
        CrossRegionRead("train", "us-central2", THERE, "europe-west4", 1_500_000_000_000),
        CrossRegionRead("train", "us-central2", f"{THERE}2", "europe-west4", 25_000_000_000),
        CrossRegionRead("evaluate", "us-central2", THERE, "europe-west4", 1_500_000_000_000),
        CrossRegionRead("evaluate", "us-central2", "gs://far/new", "asia", None),
    ]
    error = CrossRegionReadError(refused)
    assert isinstance(error, ExperimentError) and len(error.reads) == 4
    first, *lines = str(error).splitlines()
    assert "(1.52 TB in all)" in first and "allow_cross_region=('train',)" in first  # each path counts once
    assert lines == [
        f"  step 'train' in us-central2 reads {THERE} (1.5 TB) in europe-west4",
        f"  step 'train' in us-central2 reads {THERE}2 (25 GB) in europe-west4",
        f"  step 'evaluate' in us-central2 reads {THERE} (1.5 TB) in europe-west4",
        "  step 'evaluate' in us-central2 reads gs://far/new (of unknown size) in asia",
    ]


def test_sizes_have_three_digits_and_a_unit() -> None:
    sizes = [0, 7, 999, 1000, 999_499, 999_500, 12_345_678, 5 * 10**15]
    words = "0 bytes, 7 bytes, 999 bytes, 1 kB, 999 kB, 1 MB, 12.3 MB, 5 PB"
    assert ", ".join(map(human_size, sizes)) == words
