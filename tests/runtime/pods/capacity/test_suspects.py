"""Failures that put a slice on the blocklist, and whether the pod can relocate."""

from dataclasses import replace

import pytest

from tradewind.runtime.pods.capacity.reservation import Relocation, SliceBlocklist, find_relocation, should_block
from tradewind.runtime.pods.verdicts import Cause, Incident

RAISED = Incident(Cause.EXCEPTION, "Host 0 of the v4-16 slice a raised ValueError.", slice_name="a")


def after(suspected, own=(), free=(), known=(), smallest=1, may_grow=False):
    return find_relocation(suspected, own=own, free=free, known=known, smallest=smallest, may_grow=may_grow)


@pytest.mark.parametrize("cause", [cause for cause in Cause if not cause.is_preemption])
def test_a_failure_without_a_step_speaks_against_its_slice(cause):
    assert should_block(replace(RAISED, cause=cause), has_stepped=False)


def test_a_failure_after_steps_does_not_unless_it_is_silence():
    assert not should_block(RAISED, has_stepped=True)
    assert should_block(replace(RAISED, cause=Cause.SILENT), has_stepped=True)


def test_preemption_or_missing_slice_blocks_no_slice():
    assert not should_block(replace(RAISED, cause=Cause.NODE_DIED), has_stepped=False)
    assert not should_block(replace(RAISED, slice_name=None), has_stepped=False)


def test_a_free_slice_is_taken_instead():
    assert after({"a"}, own=["a"], free=["b"], known=["a", "b"]) is Relocation.AVAILABLE
    assert after({"a"}, own=["a", "c"], free=["b"], smallest=2) is Relocation.AVAILABLE


def test_a_flexible_pod_goes_on_with_fewer():
    assert after({"a"}, own=["a", "b"], known=["a", "b"], smallest=1) is Relocation.AVAILABLE
    assert after({"a"}, own=["a", "b"], known=["a", "b"], smallest=2) is Relocation.UNAVAILABLE


def test_relocation_expected_for_slices_in_use_or_to_be_added():
    assert after({"a"}, own=["a"], known=["a", "b"]) is Relocation.EXPECTED
    assert after({"a"}, own=["a"], known=["a"], may_grow=True) is Relocation.EXPECTED


def test_relocation_is_unavailable_when_all_slices_are_blocked():
    assert after({"a"}, own=["a"], known=["a"]) is Relocation.UNAVAILABLE
    assert after({"a", "b"}, own=["b"], free=["a"], known=["a", "b"]) is Relocation.UNAVAILABLE


def test_pod_does_not_repeat_timed_out_relocation_wait():
    suspects = SliceBlocklist(smallest=1)
    suspects.add("a", {"node-a"})
    busy = {"own": ["a"], "free": [], "known": ["a", "b"], "may_grow": True}
    assert suspects.relocation(RAISED, **busy) is Relocation.EXPECTED and suspects.relocation_wait_s > 0
    suspects.note_reserved(["a"])
    assert suspects.relocation(RAISED, **busy) is Relocation.UNAVAILABLE and suspects.relocation_wait_s == 0
    assert suspects.relocation(RAISED, **{**busy, "free": ["b"]}) is Relocation.AVAILABLE
    suspects.note_reserved(["b"])
    assert suspects.relocation_wait_s > 0


def test_slice_with_replaced_machines_leaves_blocklist():
    suspects = SliceBlocklist(smallest=1)
    suspects.add("a", {"node-a"})
    suspects.note_replaced({"a"})
    on_b = replace(RAISED, slice_name="b")
    assert suspects.relocation(on_b, own=["b"], free=["a"], known=["a", "b"], may_grow=False) is Relocation.AVAILABLE


def test_a_preemption_asks_for_no_other_slice():
    lost = replace(RAISED, cause=Cause.NODE_DIED)
    assert SliceBlocklist(1).relocation(lost, own=["a"], free=["b"], known=[], may_grow=True) is Relocation.UNAVAILABLE
