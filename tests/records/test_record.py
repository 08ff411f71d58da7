"""The lease decides the state of an output; the status file counts only where Tradewind has no lease."""

from __future__ import annotations

import pytest

from tradewind.records.lease import Lease, Phase
from tradewind.records.record import Record, RecordState, Status

OURS = {phase: Lease("w", 0.0, phase, 1, "job") for phase in Phase}
MARINS = Lease("theirs", 0.0)


@pytest.mark.parametrize("status", [None, *Status])
@pytest.mark.parametrize(
    ("phase", "age_s", "has_output", "state"),
    [
        (Phase.CLAIMED, 0.0, False, RecordState.AT_WORK),
        (Phase.CLAIMED, 90.0, True, RecordState.AT_WORK),
        (Phase.CLAIMED, 90.1, True, RecordState.STOPPED),
        (Phase.RUNNING, 90.0, True, RecordState.AT_WORK),
        (Phase.RUNNING, 90.1, True, RecordState.STOPPED),
        (Phase.COMMITTED, 1e9, True, RecordState.FINISHED),
        (Phase.COMMITTED, 0.0, False, RecordState.GONE),
        (Phase.FAILED, 0.0, True, RecordState.FAILED),
        (Phase.STOPPED, 0.0, True, RecordState.STOPPED),
    ],
)
def test_status_ignored_where_own_lease_exists(
    phase: Phase, age_s: float, has_output: bool, state: RecordState, status: Status | None
) -> None:
    assert Record(status, OURS[phase], age_s, has_output).state is state


@pytest.mark.parametrize(
    ("status", "has_output", "state"),
    [
        (None, False, RecordState.NONE),
        (Status.SUCCESS, True, RecordState.FINISHED),
        (Status.SUCCESS, False, RecordState.GONE),
        (Status.FAILED, True, RecordState.FAILED),
        (Status.DEP_FAILED, False, RecordState.FAILED),
        (Status.RUNNING, True, RecordState.STOPPED),
    ],
)
@pytest.mark.parametrize("lease", [None, MARINS], ids=["no lease", "a dead lease of Marin's"])
def test_marin_status_counts_without_live_lease(
    status: Status | None, has_output: bool, state: RecordState, lease: Lease | None
) -> None:
    assert Record(status, lease, 90.1, has_output).state is state


@pytest.mark.parametrize("status", [None, Status.RUNNING, Status.FAILED, Status.DEP_FAILED])
def test_live_marin_lease_means_at_work(status: Status | None) -> None:
    assert Record(status, MARINS, 89.0).state is RecordState.AT_WORK


def test_marin_success_status_counts_before_lease_release() -> None:
    assert Record(Status.SUCCESS, MARINS, 1.0, has_output=True).state is RecordState.FINISHED


def test_marin_result_needs_success_and_files() -> None:
    assert Record(Status.SUCCESS, None, has_output=True).is_marin_result
    assert not Record(Status.SUCCESS, None, has_output=False).is_marin_result
    assert not Record(Status.FAILED, None, has_output=True).is_marin_result


def test_lease_stale_by_heartbeat_of_its_owner() -> None:
    quick = Lease("w", 0.0, Phase.RUNNING, heartbeat_s=0.2)
    assert not Record(None, quick, 0.6).is_stale
    assert Record(None, quick, 0.7).is_stale
    assert not Record(None, OURS[Phase.COMMITTED], 1e9).is_stale
