"""A host never dates a renewal too late, whatever its clock offset and the message delays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.records.lease import LeaseTimes
from tradewind.runtime.pods.host_status import HostClock

SECONDS = st.floats(0, 1e4, allow_nan=False)


@pytest.mark.slow
@given(st.floats(-1e6, 1e6), st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1), st.floats(1.0, 600.0))
def test_host_stops_before_takeover_despite_clock_and_delay(
    offset: float, rounds: list[tuple[float, float, float]], heartbeat_s: float
) -> None:
    """Each round has three delays: host to driver, time at the driver, driver to host.

    All times are on the driver's clock.
    """
    times, now, renewed_at, host_ends = LeaseTimes(heartbeat_s), 0.0, 0.0, 0.0
    for way_back, rest, way_out in rounds:
        sent_at, received_at = now + offset, now + way_back
        if rest < times.heartbeat_s:
            renewed_at = received_at
        told = HostClock(sent_at, received_at).at_least(renewed_at)
        host_ends = max(host_ends, told - offset + times.fence_s)
        now = received_at + rest + way_out
        assert host_ends <= renewed_at + times.fence_s + 1e-3
    assert host_ends < renewed_at + times.kill_s
