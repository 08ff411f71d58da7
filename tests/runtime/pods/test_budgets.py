"""Incidents spend budgets, and an exhausted budget ends the attempt."""

import pickle
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tradewind.runtime.pods.budgets import Budgets, History, PodGivenUpError, normalize_traceback
from tradewind.runtime.pods.verdicts import Cause, Incident

LOST = Incident(Cause.NODE_DIED, "Host 1 of the v4-16 slice s1 was lost: its Ray node died; the other host was ended.")
NOON = 1_750_000_000.0


def failed(traceback=None, sentence="Host 0 of the v4-16 slice s1 exited with code 3."):
    return Incident(Cause.EXITED, sentence, traceback=traceback)


def history_of(*incidents, progress=None):
    history = History()
    for index, one in enumerate(incidents):
        history = history.after(one, NOON + 60 * index, progress)
    return history


def test_budget_of_n_allows_n_plus_one_attempts():
    two = history_of(LOST, LOST)
    assert two.end(Budgets(max_preemptions=2, max_failures=0)) is None
    assert two.after(LOST, NOON, None).end(Budgets(max_preemptions=2, max_failures=0)) is not None
    assert history_of(failed()).end(Budgets(max_failures=0)) is not None


def test_reason_contains_history():
    text = history_of(LOST, failed()).end(Budgets(max_failures=0))
    assert text == (
        "It failed once, and max_failures=0. 1 preemption, 1 failure: "
        "2025-06-15T15:06:40Z Host 1 of the v4-16 slice s1 was lost: its Ray node died; the other host was ended; "
        "2025-06-15T15:07:40Z Host 0 of the v4-16 slice s1 exited with code 3."
    )
    text = str(history_of(*[LOST] * 1000))
    assert text.startswith("1000 preemptions, 0 failures: 995 before; ")
    assert text.count("its Ray node died") == 5


TRACEBACK = """Traceback (most recent call last):
  File "/tmp/ray/session_2026-11-21_21-10-10_123456_{pid}/packages/tmp{folder}/train.py", line 7, in main
    fit(<Batch at 0x7f{pid}>)
ValueError: (pid={pid}, ip=10.0.0.{ip}) host 10.0.0.{ip}:5{pid}: shape (3, 4)
"""


def test_same_traceback_twice_ends_attempt():
    first = TRACEBACK.format(pid=1234, folder="abcdefgh", ip=3)
    second = TRACEBACK.format(pid=4321, folder="hgfed_cb", ip=12)
    assert normalize_traceback(first) == normalize_traceback(second)
    text = history_of(failed(first), LOST, failed(second)).end(Budgets())
    assert text.startswith("It failed twice with the same traceback, and no new checkpoint between the two. 1 preempt")


def test_other_traceback_or_new_checkpoint_allows_restart():
    first = TRACEBACK.format(pid=1234, folder="abcdefgh", ip=3)
    assert history_of(failed(first), failed(first.replace("shape (3, 4)", "shape (3, 5)"))).end(Budgets()) is None
    assert history_of(failed(first), failed("other"), failed(first)).end(Budgets()) is None
    history = History().after(failed("T"), NOON, "step-100").after(failed("T"), NOON, "step-200")
    assert history.end(Budgets()) is None
    assert history.after(failed("T"), NOON, "step-200").end(Budgets()) is not None


def test_repeated_failure_continues_on_other_slice_only():
    first, other = (replace(failed("T"), slice_name=name) for name in ("a", "b"))
    once = History().after(first, NOON, has_others=True)
    twice = once.after(first, NOON, has_others=True)
    assert (twice.end(Budgets()), twice.is_repeated_here) == (None, True)
    assert twice.after(other, NOON, has_others=True).end(Budgets()) is not None
    ended = once.after(first, NOON, has_others=False)
    assert ended.end(Budgets()) is not None and not ended.is_repeated_here


def test_failures_without_traceback_only_spend_budget():
    assert history_of(*[failed()] * 10).end(Budgets()) is None
    assert history_of(*[failed()] * 11).end(Budgets()) is not None


def test_error_can_be_pickled():
    history = history_of(LOST, failed("T"))
    copy = pickle.loads(pickle.dumps(PodGivenUpError("given up", failed("T"), history)))
    assert (str(copy), copy.incident, copy.history) == ("given up", failed("T"), history)


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_preemption_never_spends_budget_of_failures(preempted, max_preemptions, max_failures):
    history = history_of(*(LOST if one else failed() for one in preempted))
    assert (history.preemptions, history.failures) == (preempted.count(True), preempted.count(False))
    over = preempted.count(True) > max_preemptions or preempted.count(False) > max_failures
    assert (history.end(Budgets(max_preemptions, max_failures)) is not None) == over
