"""The benchmark of downloads runs, and both ways make the same files."""

from __future__ import annotations

from benchmarks.train import downloads


def test_both_ways_have_all_files() -> None:
    found = downloads.compare(3, 1_000, 0.0, 1)
    assert [one.way for one in found] == list(downloads.WAYS)
    assert all(one.seconds > 0 for one in found)
