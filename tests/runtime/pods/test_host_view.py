"""What the driver has seen of a host becomes the evidence that its end is judged by."""

from __future__ import annotations

import pytest

from tradewind.cloud_tpu.ray_labels import SLICE_NAME_LABEL
from tradewind.runtime.pods.capacity.reservation import Seat
from tradewind.runtime.pods.host_view import SeenHost
from tradewind.runtime.pods.liveness import Node
from tradewind.runtime.pods.on_host.host import Report
from tradewind.runtime.pods.verdicts import NOTICED, Cause, Evidence, judge


@pytest.fixture
def host() -> SeenHost:
    node = Node("id", "10.0.0.2", 1, {SLICE_NAME_LABEL: "s1"})
    return SeenHost(1, Seat(node, 0, 1, None, 1), None, Evidence(1, "s1", "v4-16", 2))


def test_an_exit_code_is_wrong_unless_it_answers_a_notice(host: SeenHost) -> None:
    host.note_report(Report(exit_code=NOTICED), now=0.0)
    assert host.is_wrong and judge(host.evidence).cause is Cause.EXITED


def test_a_host_that_leaves_on_a_notice_has_done_no_wrong(host: SeenHost) -> None:
    host.note(has_notice=True)
    host.note_report(Report(exit_code=NOTICED), now=0.0)
    assert not host.is_wrong and host.has_exited and judge(host.evidence).cause is Cause.NOTICED


def test_a_process_that_we_have_killed_tells_nothing_by_its_end(host: SeenHost) -> None:
    host.is_killed = True
    host.note_report(Report(exit_code=-9, was_ended=True), now=0.0)
    assert not host.is_wrong and not host.has_exited
    assert host.evidence == Evidence(1, "s1", "v4-16", 2)


def test_a_process_that_its_host_has_ended_is_cut_off(host: SeenHost) -> None:
    host.note_report(Report(exit_code=-9, was_ended=True), now=0.0)
    assert judge(host.evidence).cause is Cause.CUT_OFF


def test_the_error_is_what_the_process_told_or_else_the_traceback_that_it_printed(host: SeenHost) -> None:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 1', "ValueError: printed")
    host.note_report(Report(lines=lines, exit_code=1), now=0.0)
    host.note_error(None)
    assert "raised ValueError: printed" in judge(host.evidence).sentence
    host.note_error({"type": "KeyError", "message": "told"})
    assert "raised KeyError: told" in judge(host.evidence).sentence


def test_only_the_newest_lines_are_kept(host: SeenHost) -> None:
    for first in (0, 150):
        host.note_report(Report(lines=tuple(str(number) for number in range(first, first + 150))), now=0.0)
    assert host.evidence.last_lines == tuple(str(number) for number in range(100, 300))


def test_what_is_preempted_or_drained_is_lost_though_nothing_is_wrong_yet(host: SeenHost) -> None:
    assert not host.is_lost
    host.note_report(Report(preempted_by=5.0), now=0.0)
    assert host.is_lost and not host.is_wrong and judge(host.evidence).cause is Cause.PREEMPTED
