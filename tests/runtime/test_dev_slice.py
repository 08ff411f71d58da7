"""A development session ends without heartbeats: before its first one, or after its last one."""

from __future__ import annotations

from tradewind.runtime.dev_slice import SessionHeartbeat, SessionState


class Session:
    """Test environment: a clock, and a heartbeat file with a time of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.changed: int | None = None
        self.heartbeat = SessionHeartbeat(lambda: self.changed, 90.0, first_s=180.0, clock=lambda: self.now)


def test_session_start_wait_ends_with_timeout() -> None:
    session = Session()
    assert session.heartbeat.poll() is SessionState.NONE_YET
    session.now += 180.0
    assert session.heartbeat.poll() is SessionState.NONE_YET and session.heartbeat.is_wanted
    session.now += 1.0
    assert session.heartbeat.poll() is SessionState.SILENT and not session.heartbeat.is_wanted


def test_session_is_alive_while_file_changes_to_any_time() -> None:
    session = Session()
    for changed in (5_000, 4_000, 9_000_000_000_000):
        session.changed = changed
        assert session.heartbeat.poll() is SessionState.ALIVE
        session.now += 90.0
        assert session.heartbeat.poll() is SessionState.ALIVE
    session.now += 1.0
    assert session.heartbeat.poll() is SessionState.SILENT


def test_session_is_done_when_its_file_is_removed() -> None:
    session = Session()
    session.changed = 1
    assert session.heartbeat.poll() is SessionState.ALIVE
    session.changed = None
    assert session.heartbeat.poll() is SessionState.DONE and not session.heartbeat.is_wanted
