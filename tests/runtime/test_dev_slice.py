"""A development session ends without heartbeats: before its first one, or after its last one."""

from __future__ import annotations

from tradewind.runtime.dev_slice import SessionHeartbeat, SessionState


class World:
    """Test environment: a clock, and a heartbeat file with a time of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.changed: int | None = None
        self.signs = SessionHeartbeat(lambda: self.changed, 90.0, first_s=180.0, clock=lambda: self.now)


def test_session_start_wait_ends_with_timeout() -> None:
    world = World()
    assert world.signs.poll() is SessionState.NONE_YET
    world.now += 180.0
    assert world.signs.poll() is SessionState.NONE_YET and world.signs.is_wanted
    world.now += 1.0
    assert world.signs.poll() is SessionState.SILENT and not world.signs.is_wanted


def test_session_is_alive_while_file_changes_to_any_time() -> None:
    world = World()
    for changed in (5_000, 4_000, 9_000_000_000_000):
        world.changed = changed
        assert world.signs.poll() is SessionState.ALIVE
        world.now += 90.0
        assert world.signs.poll() is SessionState.ALIVE
    world.now += 1.0
    assert world.signs.poll() is SessionState.SILENT


def test_a_file_that_is_gone_again_means_that_the_person_is_done() -> None:
    world = World()
    world.changed = 1
    assert world.signs.poll() is SessionState.ALIVE
    world.changed = None
    assert world.signs.poll() is SessionState.DONE and not world.signs.is_wanted
