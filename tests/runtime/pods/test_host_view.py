"""The driver turns a host's reports into evidence."""

from __future__ import annotations

import pytest

from tradewind.cloud_tpu.slice_types import SLICE_NAME_LABEL
from tradewind.runtime.pods.capacity.reservation import ReservedHost
from tradewind.runtime.pods.host_status import HostStatus
from tradewind.runtime.pods.nodes import Node
from tradewind.runtime.pods.on_host.host import Report
from tradewind.runtime.pods.verdicts import NOTICED, Cause, Evidence, determine_incident


@pytest.fixture
def host() -> HostStatus:
    node = Node("id", "10.0.0.2", 1, {SLICE_NAME_LABEL: "s1"})
    return HostStatus(1, ReservedHost(node, 0, 1, None, 1), None, Evidence(1, "s1", "v4-16", 2))


def test_an_exit_code_is_wrong_unless_it_answers_a_notice(host: HostStatus) -> None:
    host.note_report(Report(exit_code=NOTICED), now=0.0)
    assert host.has_problem and determine_incident(host.evidence).cause is Cause.EXITED


def test_a_host_that_leaves_on_a_notice_has_done_no_wrong(host: HostStatus) -> None:
    host.note(has_notice=True)
    host.note_report(Report(exit_code=NOTICED), now=0.0)
    assert not host.has_problem and host.has_exited and determine_incident(host.evidence).cause is Cause.NOTICED


def test_a_process_that_we_have_killed_tells_nothing_by_its_end(host: HostStatus) -> None:
    host.is_killed = True
    host.note_report(Report(exit_code=-9, was_ended=True), now=0.0)
    assert not host.has_problem and not host.has_exited
    assert host.evidence == Evidence(1, "s1", "v4-16", 2)


def test_a_process_that_its_host_has_ended_is_cut_off(host: HostStatus) -> None:
    host.note_report(Report(exit_code=-9, was_ended=True), now=0.0)
    assert determine_incident(host.evidence).cause is Cause.CUT_OFF


def test_error_is_reported_one_or_else_printed_traceback(host: HostStatus) -> None:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 1', "ValueError: printed")
    host.note_report(Report(lines=lines, exit_code=1), now=0.0)
    host.note_error(None)
    assert "raised ValueError: printed" in determine_incident(host.evidence).sentence
    host.note_error({"type": "KeyError", "message": "told"})
    assert "raised KeyError: told" in determine_incident(host.evidence).sentence


def test_only_the_newest_lines_are_kept(host: HostStatus) -> None:
    for first in (0, 150):
        host.note_report(Report(lines=tuple(str(number) for number in range(first, first + 150))), now=0.0)
    assert host.evidence.last_lines == tuple(str(number) for number in range(100, 300))


def test_preempted_or_drained_host_is_lost_without_failure(host: HostStatus) -> None:
    assert not host.is_lost
    host.note_report(Report(preempted_by=5.0), now=0.0)
    assert host.is_lost and not host.has_problem and determine_incident(host.evidence).cause is Cause.PREEMPTED
