"""Hypothesis searches for faults of leases between any two requests; see ``lease_machine``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis.stateful import run_state_machine_as_test

from tests.records.lease_machine import LeaseMachine
from tests.records.lease_model import running
from tradewind.records.lease import Phase
from tradewind.records.lease_store import HeldLease, LeaseStore

LeaseMachine.TestCase.settings = settings(
    stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
TestLeases = pytest.mark.slow(LeaseMachine.TestCase)


# ---- cases that a search rarely finds


def test_takeover_waits_for_kernel_kill_of_frozen_owner() -> None:
    machine = LeaseMachine()
    machine.try_starts("one", False, 40)
    machine.job_starts(0, 40)
    machine.time_passes(74.0)  # longer than the fencing interval, without an answer
    machine.try_starts("two", False, 40)
    machine.function_writes(0)  # no other attempt writes
    machine.time_passes(17.0)
    assert not any(child.is_alive for child in machine.children)
    machine.try_starts("three", False, 40)
    assert [job.attempt.number for job in machine.jobs] == [1, 2]
    machine.teardown()


# ---- mutation tests: the model must find these faults


class OverwritingStore(LeaseStore):
    """Commit without a condition, over any lease."""

    def change(self, held: HeldLease, **changes: Any) -> HeldLease:
        process = running.process
        if process is None or changes.get("phase") is not Phase.COMMITTED:
            return super().change(held, **changes)
        return process.environment.overwrite(held.lease.renewed(self._now(), **changes))


@pytest.mark.slow
def test_the_model_catches_a_commit_after_a_lost_lease() -> None:
    class Mutant(LeaseMachine):
        make_store = OverwritingStore

    searched = settings(
        LeaseMachine.TestCase.settings, max_examples=1000, phases=[Stage.generate], print_blob=False, derandomize=True
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Mutant, settings=searched)
