"""Which failures speak against a slice, and whether a pod can do without it."""

from dataclasses import replace

import pytest

from tradewind.runtime.pods.suspects import Elsewhere, Suspects, elsewhere, is_suspicious
from tradewind.runtime.pods.verdicts import Cause, Incident

RAISED = Incident(Cause.EXCEPTION, "Host 0 of the v4-16 slice a raised ValueError.", slice_name="a")


def after(suspected, own=(), free=(), known=(), smallest=1, may_grow=False):
    return elsewhere(suspected, own=own, free=free, known=known, smallest=smallest, may_grow=may_grow)


@pytest.mark.parametrize("cause", [cause for cause in Cause if not cause.is_preemption])
def test_a_failure_without_a_step_speaks_against_its_slice(cause):
    assert is_suspicious(replace(RAISED, cause=cause), has_stepped=False)


def test_a_failure_after_steps_does_not_unless_it_is_silence():
    assert not is_suspicious(RAISED, has_stepped=True)
    assert is_suspicious(replace(RAISED, cause=Cause.SILENT), has_stepped=True)


def test_a_preemption_speaks_against_no_slice_and_hosts_without_one_cannot_be_suspected():
    assert not is_suspicious(replace(RAISED, cause=Cause.NODE_DIED), has_stepped=False)
    assert not is_suspicious(replace(RAISED, slice_name=None), has_stepped=False)


def test_a_free_slice_is_taken_instead():
    assert after({"a"}, own=["a"], free=["b"], known=["a", "b"]) is Elsewhere.FREE
    assert after({"a"}, own=["a", "c"], free=["b"], smallest=2) is Elsewhere.FREE


def test_a_flexible_pod_goes_on_with_fewer():
    assert after({"a"}, own=["a", "b"], known=["a", "b"], smallest=1) is Elsewhere.FREE
    assert after({"a"}, own=["a", "b"], known=["a", "b"], smallest=2) is Elsewhere.NOWHERE


def test_a_slice_that_others_have_and_one_that_the_cluster_would_add_may_come():
    assert after({"a"}, own=["a"], known=["a", "b"]) is Elsewhere.MAY_COME
    assert after({"a"}, own=["a"], known=["a"], may_grow=True) is Elsewhere.MAY_COME


def test_the_one_slice_that_there_is_is_kept_and_so_is_the_last_of_many_suspects():
    assert after({"a"}, own=["a"], known=["a"]) is Elsewhere.NOWHERE
    assert after({"a", "b"}, own=["b"], free=["a"], known=["a", "b"]) is Elsewhere.NOWHERE


def test_a_pod_that_has_waited_in_vain_for_another_slice_does_not_wait_again():
    suspects = Suspects(smallest=1)
    suspects.add("a", {"node-a"})
    busy = {"own": ["a"], "free": [], "known": ["a", "b"], "may_grow": True}
    assert suspects.elsewhere(RAISED, **busy) is Elsewhere.MAY_COME and suspects.elsewhere_s > 0
    suspects.reserved(["a"])
    assert suspects.elsewhere(RAISED, **busy) is Elsewhere.NOWHERE and suspects.elsewhere_s == 0
    assert suspects.elsewhere(RAISED, **{**busy, "free": ["b"]}) is Elsewhere.FREE
    suspects.reserved(["b"])
    assert suspects.elsewhere_s > 0


def test_a_slice_whose_machines_are_replaced_is_suspected_no_more():
    suspects = Suspects(smallest=1)
    suspects.add("a", {"node-a"})
    suspects.replaced({"a"})
    on_b = replace(RAISED, slice_name="b")
    assert suspects.elsewhere(on_b, own=["b"], free=["a"], known=["a", "b"], may_grow=False) is Elsewhere.FREE


def test_a_preemption_asks_for_no_other_slice():
    lost = replace(RAISED, cause=Cause.NODE_DIED)
    assert Suspects(1).elsewhere(lost, own=["a"], free=["b"], known=[], may_grow=True) is Elsewhere.NOWHERE
