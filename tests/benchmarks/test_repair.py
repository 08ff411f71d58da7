"""The benchmark of the repair runs, and every pass keeps to the bound of its requests."""

from __future__ import annotations

import pytest

from benchmarks.repair.passes import KINDS, bound, measure


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_over_many_slices_keeps_to_the_bound_of_its_requests(kind: str) -> None:
    one = measure(kind, 40, 0.0)
    dead = 40 if kind in KINDS[2:] else 0
    assert (one.deletions, one.creations) == (dead, dead)
    assert one.requests <= bound(one) and one.store_requests <= 12
    assert one.passes == (1 if dead else 0)
