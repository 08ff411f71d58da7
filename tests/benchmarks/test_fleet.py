"""Fleet benchmark: every round repairs only the dead slices, within the bound of its requests."""

from __future__ import annotations

import pytest

from benchmarks.fleet.rounds import KINDS, WAYS, ZONES, Round, measure


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dead"), list(zip(KINDS, (0, len(WAYS), 5, 5), strict=True)))
def test_repair_pass_replaces_only_dead_within_request_bound(kind: str, dead: int) -> None:
    measured = Round(**measure(kind, 5, 0.0))
    assert (measured.dead, measured.is_exact) == (dead * len(ZONES), True)
    assert measured.requests <= measured.bound and measured.store_requests <= 12 * len(ZONES)
