"""What happened to a pod, kept and told in numbers."""

import pytest

from tradewind.runtime.pods.timeline import TIMELINE_FILE, Segment, Timeline, read_timeline, summary


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


def test_events_are_written_in_order_with_their_times(tmp_path, clock):
    path = str(tmp_path / "attempt" / TIMELINE_FILE)
    timeline = Timeline(path, clock)
    timeline.note("waiting", num_slices=2)
    clock.passes(5)
    timeline.note("reserved")
    assert timeline.flush()
    assert read_timeline(path) == [
        {"event": "waiting", "at": 1000.0, "num_slices": 2},
        {"event": "reserved", "at": 1005.0},
    ]


def test_without_a_path_the_events_are_kept(clock):
    timeline = Timeline(None, clock)
    timeline.note("started")
    assert timeline.flush(0)
    assert timeline.events == [{"event": "started", "at": 1000.0}]


def test_a_timeline_that_does_not_exist_is_empty(tmp_path):
    assert read_timeline(str(tmp_path / TIMELINE_FILE)) == []


def test_a_store_that_is_down_is_written_to_when_it_is_back(tmp_path, clock, capfd):
    folder = tmp_path / "attempt"
    folder.write_text("a file where the folder should be")
    timeline = Timeline(str(folder / TIMELINE_FILE), clock, retry_s=0.01)
    timeline.note("started")
    assert not timeline.flush(0.1)
    assert "the timeline cannot be written now" in capfd.readouterr().out
    timeline.note("done")
    folder.unlink()
    assert timeline.flush()
    assert [one["event"] for one in read_timeline(str(folder / TIMELINE_FILE))] == ["started", "done"]


def test_values_that_json_does_not_know_are_written_as_text(tmp_path):
    path = str(tmp_path / TIMELINE_FILE)
    timeline = Timeline(path)
    timeline.note("failed", where=tmp_path)
    assert timeline.flush()
    assert read_timeline(path)[0]["where"] == str(tmp_path)


@pytest.fixture
def night(clock):
    """A slice is lost, the pod waits for another one, fails, grows, and is done."""
    timeline = Timeline(None, clock)
    for seconds, event, fields in [
        (0, "waiting", {}),
        (10, "reserved", {}),
        (2, "started", {"num_slices": 1}),
        (8, "first_step", {"step": 1}),
        (99, "waiting", {}),  # the next slice is reserved while the old one is being ended
        (1, "preempted", {"cause": "node died", "step": 57, "checkpoint_step": 50}),
        (30, "reserved", {}),
        (2, "started", {"num_slices": 1}),
        (50, "failed", {"cause": "exception", "step": 50, "checkpoint_step": 50}),
        (3, "started", {"num_slices": 1}),
        (20, "scaled", {"step": 61}),
        (5, "started", {"num_slices": 2}),
        (40, "done", {}),
    ]:
        clock.passes(seconds)
        timeline.note(event, **fields)
    return timeline.events


def test_a_night_in_numbers(night):
    found = summary(night)
    assert (found.restarts, found.preemptions, found.failures, found.lost_steps) == (3, 1, 1, 7)
    assert found.started_at == 1012
    assert found.waiting_s == 10 + 31
    assert found.wall_s == 8 + 100 + 30 + 2 + 50 + 3 + 20 + 5 + 40
    assert [segment.end for segment in found.segments] == ["preempted", "failed", "scaled", "done"]
    assert found.segments[0] == Segment(
        started_at=1012,
        ended_at=1120,
        end="preempted",
        cause="node died",
        first_step_at=1020,
        num_slices=1,
        lost_steps=7,
    )


def test_without_a_checkpoint_all_steps_are_lost():
    events = [{"event": "started", "at": 1}, {"event": "failed", "at": 2, "step": 9, "checkpoint_step": None}]
    assert summary(events).lost_steps == 9


def test_what_still_runs_counts_until_now(night):
    found = summary(night[:4], now=1500)
    assert found.wall_s == 1500 - 1012
    assert found.segments[-1].ended_at is None
    assert summary(night[:6], now=1500).waiting_s == 10 + 1500 - 1119


def test_a_pod_that_never_started_has_no_wall_time(night):
    found = summary(night[:1], now=1060)
    assert (found.started_at, found.wall_s, found.waiting_s, found.restarts) == (None, 0, 60, 0)
    assert summary([]).segments == ()
