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


def test_written_events_are_read_back(tmp_path):
    path = str(tmp_path / "attempt" / TIMELINE_FILE)
    timeline = Timeline(path)
    events = [
        TimelineEvent("waiting", 1000.0, group="v4-16", sizes=(2, 1)),
        TimelineEvent("failed", 1005.5, "exception", "Host 0 raised.", slice_name="a", host=0, detect_s=0.5, step=3),
        TimelineEvent("scaled", 1006.0, num_slices=1, grows_to=2),
    ]
    assert read_timeline(path) == []
    for event in events:
        timeline.note(event)
    timeline.note(TimelineEvent("failed", 1007.0, sentence=tmp_path))  # JSON has no such value
    assert timeline.flush()
    assert read_timeline(path) == [*events, TimelineEvent("failed", 1007.0, sentence=str(tmp_path))]


def test_rows_of_other_versions_are_read(tmp_path):
    rows = [
        {"event": "scaled", "at": 5, "to": 2, "slice": None, "later_field": 1},
        {"event": "failed", "at": 6.0, "slice": "a", "step": 9, "checkpoint_step": None},
    ]
    (tmp_path / TIMELINE_FILE).write_text(json.dumps(rows))
    assert read_timeline(str(tmp_path / TIMELINE_FILE)) == [
        TimelineEvent("scaled", 5, grows_to=2),
        TimelineEvent("failed", 6.0, slice_name="a", step=9),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [MAX_EVENTS, MAX_EVENTS + 1])
def test_timeline_with_too_many_events_is_refused(tmp_path, count):
    path = tmp_path / TIMELINE_FILE
    path.write_text(json.dumps([{"event": "a", "at": 1}] * count))
    assert path.stat().st_size < MAX_TIMELINE_BYTES
    if count <= MAX_EVENTS:
        assert len(read_timeline(str(path))) == count
    else:
        with pytest.raises(BadTimelineError, match="because it holds more than 40,000 events"):
            read_timeline(str(path))


def test_every_field_of_event_survives_its_row():
    values = {"str": "x", "int": 1, "float": 2.5, "tuple": ("a",)}
    kinds = {each.name: each.type.partition(" |")[0].partition("[")[0] for each in dataclasses.fields(TimelineEvent)}
    event = TimelineEvent(**{name: (1,) if name == "sizes" else values[kind] for name, kind in kinds.items()})
    assert TimelineEvent.from_row(json.loads(json.dumps(event.to_row()))) == event


def test_timeline_without_path_keeps_events_in_memory():
    timeline = Timeline(None)
    timeline.note(TimelineEvent("started", 1000.0))
    assert timeline.flush(0)
    assert timeline.events == [TimelineEvent("started", 1000.0)]


def test_timeline_is_written_when_store_is_back(tmp_path, capfd):
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


@pytest.fixture
def run():
    """Events of a pod that loses a slice, waits for another one, fails, grows and succeeds."""
    events, now = [], 1000.0
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
        now += seconds
        events.append(TimelineEvent(event, now, **fields))
    return events


def test_summary_counts_time_restarts_and_lost_steps(run):
    result = summary(run)
    assert (result.restarts, result.preemptions, result.failures, result.lost_steps) == (3, 1, 1, 7)
    assert result.started_at == 1012
    assert result.waiting_s == 10 + 31
    assert result.wall_s == 8 + 100 + 30 + 2 + 50 + 3 + 20 + 5 + 40
    assert [segment.end for segment in result.segments] == ["preempted", "failed", "scaled", "done"]
    times = {"started_at": 1012, "first_step_at": 1020, "ended_at": 1120}
    assert result.segments[0] == Segment(**times, end="preempted", cause="node died", num_slices=1, lost_steps=7)


def test_running_pod_counts_until_now(run):
    assert summary([TimelineEvent("started", 1.0), TimelineEvent("failed", 2.0, step=9)]).lost_steps == 9
    result = summary(run[:4], now=1500)
    assert result.wall_s == 1500 - 1012
    assert result.segments[-1].ended_at is None
    assert summary(run[:6], now=1500).waiting_s == 10 + 1500 - 1119


def test_pod_that_never_started_has_no_wall_time(run):
    result = summary(run[:1], now=1060)
    assert (result.started_at, result.wall_s, result.waiting_s, result.restarts) == (None, 0, 60, 0)
    assert summary([]).segments == ()
