"""Fencing ends an owner before another process may take over, for all settings of a deployment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.records.lease import Lease, LeaseTimes
from tradewind.runtime.driver.process_guard import POLL_S

HEARTBEATS = st.floats(1.0, 3600.0)


@pytest.mark.slow
@given(HEARTBEATS, st.floats(0.0, 3600.0), st.floats(0.0, 3600.0))
def test_polls_and_graceful_shutdown_fit_before_takeover(
    heartbeat_s: float, grace_s: float, stop_requested_at: float
) -> None:
    times = LeaseTimes(heartbeat_s)
    driver_ends = times.fence_s + times.fence_poll_s
    guard_ends = min(stop_requested_at + grace_s, times.fence_s) + POLL_S  # fencing limits the grace period
    assert max(driver_ends, guard_ends) <= times.kill_s < times.stale_s


@given(HEARTBEATS)
def test_owner_can_renew_and_poll_before_fencing(heartbeat_s: float) -> None:
    times = LeaseTimes(heartbeat_s)
    assert heartbeat_s + times.poll_s < times.fence_s
    assert times.kill_s == 1.25 * times.fence_s  # hosts know only the fencing interval


@given(HEARTBEATS)
def test_lease_has_the_times_of_its_own_heartbeat(heartbeat_s: float) -> None:
    lease, times = Lease("me", 0.0, heartbeat_s=heartbeat_s), LeaseTimes(heartbeat_s)
    assert (lease.fence_s, lease.stale_s) == (times.fence_s, times.stale_s)


def test_default_lease_times_match_marin_thirty_second_heartbeat() -> None:
    assert (LeaseTimes().fence_s, LeaseTimes().kill_s, LeaseTimes().stale_s) == (60.0, 75.0, 90.0)
