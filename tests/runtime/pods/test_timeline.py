"""The timeline stores a pod's events, and its summary counts them."""

import dataclasses
import json

import pytest

from tradewind.runtime.pods.timeline import (
    MAX_EVENTS,
    MAX_TIMELINE_BYTES,
    TIMELINE_FILE,
    BadTimelineError,
    Segment,
    Timeline,
    TimelineEvent,
    read_timeline,
    summary,
)


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


def test_events_are_read_as_they_were_noted(tmp_path):
    path = str(tmp_path / "attempt" / TIMELINE_FILE)
    timeline = Timeline(path)
    events = [
        TimelineEvent("waiting", 1000.0, group="v4-16", sizes=(2, 1)),
        TimelineEvent("failed", 1005.5, "exception", "Host 0 raised.", slice_name="a", host=0, detect_s=0.5, step=3),
        TimelineEvent("scaled", 1006.0, num_slices=1, grows_to=2),
    ]
    for event in events:
        timeline.note(event)
    assert timeline.flush()
    assert read_timeline(path) == events


def test_the_rows_of_earlier_and_later_versions_are_read(tmp_path):
    rows = [
        {"event": "scaled", "at": 5, "to": 2, "slice": None, "mood": "well"},
        {"event": "failed", "at": 6.0, "slice": "a", "step": 9, "checkpoint_step": None},
    ]
    (tmp_path / TIMELINE_FILE).write_text(json.dumps(rows))
    assert read_timeline(str(tmp_path / TIMELINE_FILE)) == [
        TimelineEvent("scaled", 5, grows_to=2),
        TimelineEvent("failed", 6.0, slice_name="a", step=9),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [MAX_EVENTS, MAX_EVENTS + 1])
def test_no_more_events_are_read_than_a_pod_has(tmp_path, count):
    path = tmp_path / TIMELINE_FILE
    path.write_text(json.dumps([{"event": "a", "at": 1}] * count))
    assert path.stat().st_size < MAX_TIMELINE_BYTES
    if count <= MAX_EVENTS:
        assert len(read_timeline(str(path))) == count
    else:
        with pytest.raises(BadTimelineError, match="because it holds more than 40,000 events"):
            read_timeline(str(path))


def test_every_field_of_an_event_comes_back_from_its_row():
    values = {"str": "x", "int": 1, "float": 2.5, "tuple": ("a",)}
    kinds = {each.name: each.type.partition(" |")[0].partition("[")[0] for each in dataclasses.fields(TimelineEvent)}
    event = TimelineEvent(**{name: (1,) if name == "sizes" else values[kind] for name, kind in kinds.items()})
    assert TimelineEvent.from_row(json.loads(json.dumps(event.to_row()))) == event


def test_a_row_has_the_documented_keys():
    event = TimelineEvent("preempted", 5.0, slice_name="a", host=1, grows_to=2, step=3)
    assert event.to_row() == {"event": "preempted", "at": 5.0, "slice": "a", "host": 1, "to": 2, "step": 3}


def test_without_a_path_the_events_are_kept():
    timeline = Timeline(None)
    timeline.note(TimelineEvent("started", 1000.0))
    assert timeline.flush(0)
    assert timeline.events == [TimelineEvent("started", 1000.0)]


def test_a_timeline_that_does_not_exist_is_empty(tmp_path):
    assert read_timeline(str(tmp_path / TIMELINE_FILE)) == []


def test_a_store_that_is_down_is_written_to_when_it_is_back(tmp_path, capfd):
    folder = tmp_path / "attempt"
    folder.write_text("a file where the folder should be")
    timeline = Timeline(str(folder / TIMELINE_FILE), retry_s=0.01)
    timeline.note(TimelineEvent("started", 1.0))
    assert not timeline.flush(0.1)
    assert "cannot write the timeline" in capfd.readouterr().out
    timeline.note(TimelineEvent("done", 2.0))
    folder.unlink()
    assert timeline.flush()
    assert [event.name for event in read_timeline(str(folder / TIMELINE_FILE))] == ["started", "done"]


def test_values_that_json_does_not_know_are_written_as_text(tmp_path):
    path = str(tmp_path / TIMELINE_FILE)
    timeline = Timeline(path)
    timeline.note(TimelineEvent("failed", 1.0, sentence=tmp_path))
    assert timeline.flush()
    assert read_timeline(path)[0].sentence == str(tmp_path)


@pytest.fixture
def night(clock):
    """Events of a pod that loses a slice, waits for another one, fails, grows and succeeds."""
    events = []
    for seconds, event, fields in [
        (0, "waiting", {}),
        (10, "reserved", {}),
        (2, "started", {"num_slices": 1}),
        (8, "first_step", {"step": 1}),
        (99, "waiting", {}),  # the reservation of the next slice starts before the old one has ended
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
        events.append(TimelineEvent(event, clock(), **fields))
    return events


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
    events = [TimelineEvent("started", 1.0), TimelineEvent("failed", 2.0, step=9)]
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
