"""Preemptions and goodput by day, from reports of upkeep and timelines of pods."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.cloud_tpu.repair.records import SliceRecord
from tradewind.cloud_tpu.repair.rules import decide
from tradewind.cloud_tpu.repair.terms import RepairReport, RepairSettings, Scope, Snapshot
from tradewind.cloud_tpu.resources import QueuedTpu, TpuNode
from tradewind.fleet.history import (
    DayGoodput,
    PodRecord,
    PreemptionCount,
    day_of,
    goodput_by_day,
    last_days,
    preemptions_by_day,
)
from tradewind.fleet.upkeep import PastReport, UpkeepLine, UpkeepReport, slice_lines
from tradewind.records.parsing import RecordFormatError
from tradewind.runtime.pods.timeline import TimelineEvent

DAY = 86_400.0
START = 20_000 * DAY
ZONES = {"here": "us-central2-b"}


def report(at: float, *lines: UpkeepLine, clusters: tuple[str, ...] = ("here",)) -> PastReport:
    """Return a report as upkeep stores it and the page reads it."""
    stored = UpkeepReport(lines).to_json()
    counts: dict[str, dict[str, int]] = {name: {} for name in clusters}
    return PastReport.from_json(stored | {"counts": counts | stored["counts"]}, START + at)


def found(state: str, done: str = "replaced", name: str = "a") -> UpkeepLine:
    """Return the line about a node in a state, from the rules of the repair."""
    node = TpuNode(name, state, identity="1", hosts=1, labels={"ray-cluster-name": "here"})
    snapshot = Snapshot([node], [], {}, {name: SliceRecord(name)}, START)
    findings = decide(snapshot, Scope(labels={"ray-cluster-name": "here"}), RepairSettings())
    rows = RepairReport(findings, {name: done}).rows()
    [line] = slice_lines("here", {"slices": rows, "stuck": []})
    return line


def counts(*reports: PastReport, pods: tuple[PodRecord, ...] = ()) -> dict[str, int]:
    return {count.day: count.count for count in preemptions_by_day(reports, pods, ZONES)}


TODAY, TOMORROW = day_of(START), day_of(START + DAY)


def test_preempted_slice_counts_when_it_is_first_reported() -> None:
    stays = found("PREEMPTED", done="")
    assert counts(report(0, stays), report(600, stays), report(1200, stays)) == {TODAY: 1}
    assert counts(report(0, stays), report(600), report(DAY, stays)) == {TODAY: 1, TOMORROW: 1}
    assert counts(report(0, found("PREEMPTED")), report(600, found("PREEMPTED"))) == {TODAY: 2}
    assert counts(report(0, found("CREATING", ""), found("TERMINATED", name="b"))) == {}


def test_cluster_that_was_not_checked_keeps_its_slices() -> None:
    stays = found("PREEMPTED", done="")
    assert counts(report(0, stays), report(600, clusters=()), report(1200, stays)) == {TODAY: 1}


def test_suspended_queued_resource_is_preempted() -> None:
    queue = QueuedTpu("q", "SUSPENDED", "1", ("a",), labels={"ray-cluster-name": "here"})
    findings = decide(Snapshot([], [queue], {}, {}, START), Scope({"q": {"tpu": {"nodeSpec": []}}}), RepairSettings())
    lines = slice_lines("here", {"slices": RepairReport(findings).rows()})
    assert counts(report(0, *lines)) == {TODAY: 1}


def preempted(at: float, name: str | None = "a", **more: Any) -> TimelineEvent:
    return TimelineEvent("preempted", START + at, slice_name=name, **more)


def test_same_preemption_in_both_records_counts_once() -> None:
    pods = (PodRecord("here", [preempted(5), preempted(500)]), PodRecord("other", [preempted(5)]))
    assert counts(report(10, found("PREEMPTED")), pods=pods) == {TODAY: 2}
    assert counts(report(10, found("PREEMPTED")), pods=(PodRecord("here", [preempted(5, "b")]),)) == {TODAY: 2}
    assert preemptions_by_day([], pods, ZONES) == [PreemptionCount(TODAY, "us-central2-b", 2)]


def at(name: str, seconds: float, **more: Any) -> TimelineEvent:
    return TimelineEvent(name, START + seconds, **more)


RUN = [at("waiting", 0), at("started", 100), at("first_step", 200)]


@pytest.mark.parametrize(
    ("events", "ended", "productive", "wall"),
    [
        ([], None, None, None),
        ([at("waiting", 0)], None, None, None),
        (RUN, 1100, 900, 1000),  # its job ended without a word
        (RUN, None, 1800, 1900),  # it runs: now is 2000
        ([*RUN, at("done", 600)], 1100, 400, 500),
        # Of 100 steps in 400 s, 25 are lost; then 400 s without steps, and 400 s with.
        (
            [*RUN, at("preempted", 600, step=100, checkpoint_step=75), at("started", 900), at("first_step", 1000),
             at("done", 1400)],
            1400, 300 + 400, 1300,
        ),
        # The second start makes 25 steps from the saved 75, and loses all of them.
        (
            [*RUN, at("failed", 600, step=75, checkpoint_step=75), at("started", 600), at("first_step", 600),
             at("failed", 700, step=100, checkpoint_step=75)],
            700, 400, 600,
        ),
    ],
)  # fmt: skip
def test_goodput_leaves_out_starts_and_lost_steps(
    events: list[TimelineEvent], ended: float | None, productive: float | None, wall: float | None
) -> None:
    pod = PodRecord("here", events, None if ended is None else START + ended)
    found = goodput_by_day([pod], START + 2000)
    if wall is None or productive is None:
        assert found == []
    else:
        assert found == [DayGoodput(TODAY, "here", productive, wall, productive / wall)]


def test_goodput_is_divided_at_midnight() -> None:
    pod = PodRecord("here", [at("started", DAY - 300), at("first_step", DAY - 100), at("done", DAY + 100)])
    today, tomorrow = goodput_by_day([pod, pod], START + 2 * DAY)
    assert (today.day, tomorrow.day) == (TODAY, TOMORROW)
    assert [today.productive_s, today.wall_s, tomorrow.productive_s, tomorrow.share] == pytest.approx(
        [200, 600, 200, 1]
    )


@pytest.mark.parametrize("end", [1e11, 1e300])
def test_event_in_the_far_future_makes_no_days(end: float) -> None:
    events = [TimelineEvent("started", 0.0), TimelineEvent("preempted", end), TimelineEvent("done", end)]
    pods = [PodRecord("here", events)] * 50
    assert len(goodput_by_day(pods, START)) == 15
    assert preemptions_by_day([], pods, ZONES) == []


def test_last_days_end_today() -> None:
    assert last_days(START + 5, 2) == [day_of(START - 1), TODAY]


@pytest.mark.parametrize(
    "change",
    [
        {"news": [{"cluster": "here"}]}, {"news": ["x"]}, {"news": {}}, {"counts": {"here": 1}}, {"counts": []},
        {"counts": {"here": {"slice": -1}}}, {"for_a_person": [1]}, {"unseen": None},
    ],
)  # fmt: skip
def test_other_json_is_no_report(change: dict[str, Any]) -> None:
    good = UpkeepReport([found("PREEMPTED")]).to_json()
    assert PastReport.from_json(good, 0.0).lines == [found("PREEMPTED")]
    with pytest.raises(RecordFormatError):
        PastReport.from_json({**good, **change}, 0.0)
