"""The benchmarks of downloads and of tokenizing run, and each way makes what it is to make."""

from __future__ import annotations

import pytest

from benchmarks.train import downloads, steps, tokens


@pytest.mark.slow
def test_both_ways_have_all_files() -> None:
    found = downloads.compare(3, 1_000, 0.0, 1)
    assert [one.way for one in found] == list(downloads.WAYS)
    assert all(one.seconds > 0 for one in found)


@pytest.mark.slow
def test_files_that_are_tokenized_are_looked_at_in_less_time() -> None:
    first, again = tokens.measure_finished(3)
    assert first > again > 0


def test_the_median_of_pairs_lies_where_the_sign_test_says() -> None:
    found = steps.Training(1.0, 1.0, [float(number) for number in range(15)])
    assert found.spread == (3.0, 11.0)  # of 15 pairs, the fourth from both ends: Conover, Practical Nonparametrics
