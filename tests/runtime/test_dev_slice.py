"""A development session ends without heartbeats: before its first one, or after its last one."""

from __future__ import annotations

from tradewind.runtime.dev_slice import SessionHeartbeat, SessionState


def test_session_needs_heartbeats_within_its_limits() -> None:
    now, changed = 100.0, None
    heartbeat = SessionHeartbeat(lambda: changed, 90.0, first_s=180.0, clock=lambda: now)
    assert heartbeat.poll() is SessionState.NONE_YET
    now += 180.0
    assert heartbeat.poll() is SessionState.NONE_YET and heartbeat.is_wanted
    now += 1.0
    assert heartbeat.poll() is SessionState.SILENT and not heartbeat.is_wanted
    for changed in (5_000, 4_000, 9_000_000_000_000):  # noqa: B007 (times of the file are only compared)
        assert heartbeat.poll() is SessionState.ALIVE
        now += 90.0
        assert heartbeat.poll() is SessionState.ALIVE
    now += 1.0
    assert heartbeat.poll() is SessionState.SILENT
    changed = None
    assert heartbeat.poll() is SessionState.DONE and not heartbeat.is_wanted
