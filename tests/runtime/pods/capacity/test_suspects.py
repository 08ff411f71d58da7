"""Failures that put a slice on the blocklist, and whether the pod can relocate."""

from dataclasses import replace

import pytest

from tradewind.runtime.pods.capacity.reservation import Relocation, SliceBlocklist, find_relocation, should_block
from tradewind.runtime.pods.verdicts import Cause, Incident

RAISED = Incident(Cause.EXCEPTION, "Host 0 of the v4-16 slice a raised ValueError.", slice_name="a")


@pytest.mark.parametrize(
    ("fields", "has_stepped", "blocks"),
    [
        *(({"cause": cause}, False, not cause.is_preemption) for cause in Cause),
        ({}, True, False),
        ({"cause": Cause.SILENT}, True, True),
        ({"slice_name": None}, False, False),
    ],
)
def test_slice_is_blocked_by_failure_before_first_step_or_stall(fields, has_stepped, blocks):
    assert should_block(replace(RAISED, **fields), has_stepped=has_stepped) is blocks


@pytest.mark.parametrize(
    ("suspected", "slices", "relocation"),
    [
        ("a", {"own": "a", "free": "b", "known": "ab"}, Relocation.AVAILABLE),
        ("a", {"own": "ac", "free": "b", "smallest": 2}, Relocation.AVAILABLE),
        ("a", {"own": "ab", "known": "ab"}, Relocation.AVAILABLE),  # a flexible pod continues with fewer slices
        ("a", {"own": "ab", "known": "ab", "smallest": 2}, Relocation.UNAVAILABLE),
        ("a", {"own": "a", "known": "ab"}, Relocation.EXPECTED),  # another pod uses slice b
        ("a", {"own": "a", "known": "a", "may_grow": True}, Relocation.EXPECTED),
        ("a", {"own": "a", "known": "a"}, Relocation.UNAVAILABLE),
        ("ab", {"own": "b", "free": "a", "known": "ab"}, Relocation.UNAVAILABLE),
    ],
)
def test_relocation_needs_slice_outside_blocklist(suspected, slices, relocation):
    options = {"own": "", "free": "", "known": "", "smallest": 1, "may_grow": False, **slices}
    assert find_relocation(set(suspected), **options) is relocation


def test_pod_does_not_repeat_timed_out_relocation_wait():
    blocklist = SliceBlocklist(smallest=1)
    blocklist.add("a", {"node-a"})
    busy = {"own": ["a"], "free": [], "known": ["a", "b"], "may_grow": True}
    assert blocklist.relocation(RAISED, **busy) is Relocation.EXPECTED and blocklist.relocation_wait_s > 0
    blocklist.note_reserved(["a"])
    assert blocklist.relocation(RAISED, **busy) is Relocation.UNAVAILABLE and blocklist.relocation_wait_s == 0
    assert blocklist.relocation(RAISED, **{**busy, "free": ["b"]}) is Relocation.AVAILABLE
    blocklist.note_reserved(["b"])
    assert blocklist.relocation_wait_s > 0


def test_slice_with_replaced_machines_leaves_blocklist():
    blocklist = SliceBlocklist(smallest=1)
    blocklist.add("a", {"node-a"})
    blocklist.note_replaced({"a"})
    on_b = replace(RAISED, slice_name="b")
    assert blocklist.relocation(on_b, own=["b"], free=["a"], known=["a", "b"], may_grow=False) is Relocation.AVAILABLE


def test_preemption_relocates_no_pod():
    lost = replace(RAISED, cause=Cause.NODE_DIED)
    assert SliceBlocklist(1).relocation(lost, own=["a"], free=["b"], known=[], may_grow=True) is Relocation.UNAVAILABLE
