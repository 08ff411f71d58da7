"""The driver turns a host's reports into evidence and never dates a renewal too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.cloud_tpu.slice_types import SLICE_NAME_LABEL
from tradewind.records.lease import LeaseTimes
from tradewind.runtime.pods.capacity.reservation import ReservedHost
from tradewind.runtime.pods.host_status import HostClock, HostStatus, error_in
from tradewind.runtime.pods.nodes import Node
from tradewind.runtime.pods.on_host.host import Report
from tradewind.runtime.pods.verdicts import NOTICED, Cause, Evidence, determine_incident


@pytest.fixture
def host() -> HostStatus:
    node = Node("id", "10.0.0.2", 1, {SLICE_NAME_LABEL: "s1"})
    return HostStatus(1, ReservedHost(node, 0, 1, None, 1), None, Evidence(1, "s1", "v4-16", 2))


@pytest.mark.parametrize(
    ("has_notice", "report", "has_problem", "has_exited", "cause"),
    [
        (False, Report(exit_code=NOTICED), True, True, Cause.EXITED),
        (True, Report(exit_code=NOTICED), False, True, Cause.NOTICED),
        (False, Report(exit_code=-9, was_ended=True), True, False, Cause.CUT_OFF),
        (False, Report(preempted_by=5.0), False, False, Cause.PREEMPTED),
    ],
)
def test_report_of_host_is_judged(
    host: HostStatus, has_notice: bool, report: Report, has_problem: bool, has_exited: bool, cause: Cause
) -> None:
    host.note(has_notice=has_notice)
    host.note_report(report, now=0.0)
    assert (host.has_problem, host.has_exited) == (has_problem, has_exited)
    assert determine_incident(host.evidence).cause is cause
    assert host.is_lost is (cause is Cause.PREEMPTED)


def test_exit_of_process_killed_by_driver_is_no_evidence(host: HostStatus) -> None:
    host.is_killed = True
    host.note_report(Report(exit_code=-9, was_ended=True), now=0.0)
    assert not host.has_problem and not host.has_exited
    assert host.evidence == Evidence(1, "s1", "v4-16", 2)


def test_error_is_reported_one_or_else_printed_traceback(host: HostStatus) -> None:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 1', "ValueError: printed")
    host.note_report(Report(lines=lines, exit_code=1), now=0.0)
    host.note_error(None)
    assert "raised ValueError: printed" in determine_incident(host.evidence).sentence
    host.note_error({"type": "KeyError", "message": "reported"})
    assert "raised KeyError: reported" in determine_incident(host.evidence).sentence


def test_only_the_newest_lines_are_kept(host: HostStatus) -> None:
    for first in (0, 150):
        host.note_report(Report(lines=tuple(str(number) for number in range(first, first + 150))), now=0.0)
    assert host.evidence.last_lines == tuple(str(number) for number in range(100, 300))


def test_error_is_last_printed_traceback() -> None:
    first = "Traceback (most recent call last):"
    lines = [first, "  old", "KeyError: 1", "hello", first]
    lines += ['  File "x", line 1, in f', "my.package.SomeError: it is wrong: very", "bye"]
    traceback = "\n".join(lines[4:7]) + "\n"
    assert error_in(lines) == {"type": "SomeError", "message": "it is wrong: very", "traceback": traceback}
    assert error_in(["all is well"]) is None


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
        dated = HostClock(sent_at, received_at).at_least(renewed_at)
        host_ends = max(host_ends, dated - offset + times.fence_s)
        now = received_at + rest + way_out
        assert host_ends <= renewed_at + times.fence_s + 1e-3
    assert host_ends < renewed_at + times.kill_s
