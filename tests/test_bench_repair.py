"""The benchmark of the repair runs, and every pass keeps to the bound of its requests."""

from __future__ import annotations

import pytest

from benchmarks import repair
from benchmarks.repair_passes import KINDS, Pass, bound, measure


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_over_many_slices_keeps_to_the_bound_of_its_requests(kind: str) -> None:
    one = measure(kind, 40, 0.0)
    dead = 40 if kind in KINDS[2:] else 0
    assert (one.deletions, one.creations) == (dead, dead)
    assert one.requests <= bound(one) and one.store_requests <= 12
    assert one.passes == (1 if dead else 0)


def test_the_table_has_a_row_for_each_kind_of_pass() -> None:
    table = repair.passes_table([Pass(kind, 16.0, 1024, 3, 3, 4, 1, 10, 1, 1.0, 1.0, 1) for kind in KINDS], 1024).text()
    assert all(kind in table for kind in KINDS) and table.count("missed (< 15 s)") == len(KINDS)
