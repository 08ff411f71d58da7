"""A fault schedule is a function of its seed, and adjacent seeds cover every kind of fault."""

from __future__ import annotations

import pytest

from tradewind.rehearsal.drill.faults import Fault, UnknownFaultError, fault_named, schedule


def test_schedule_reproducible_by_seed_and_differs_between_seeds() -> None:
    assert schedule(7, steps=200) == schedule(7, steps=200)
    assert len({schedule(seed, steps=200) for seed in range(50)}) == 50


@pytest.mark.parametrize("first", [0, 3, 18])
def test_three_seeds_of_one_deck_have_every_kind(first: int) -> None:
    kinds = [fault.kind for seed in range(first, first + 3) for fault in schedule(seed, steps=200)]
    assert sorted(kind.value for kind in kinds) == sorted(kind.value for kind in Fault)


@pytest.mark.parametrize("seed", range(20))
def test_faults_ordered_and_away_from_start_and_end(seed: int) -> None:
    moments = [fault.step for fault in schedule(seed, steps=200)]
    assert moments == sorted(set(moments))
    assert moments[0] >= 20 and moments[-1] < 180


def test_death_of_the_head_is_the_last_fault() -> None:
    hands = [[fault.kind for fault in schedule(seed, steps=200)] for seed in range(20)]
    with_head = [hand for hand in hands if Fault.HEAD in hand]
    assert len(with_head) >= 6 and all(hand[-1] is Fault.HEAD for hand in with_head)


def test_schedule_uses_requested_kinds_and_reaches_all_hosts() -> None:
    faults = [fault for seed in range(20) for fault in schedule(seed, [Fault.HOST, Fault.HANG], steps=100, hosts=4)]
    assert {fault.kind for fault in faults} == {Fault.HOST, Fault.HANG}
    assert {fault.host for fault in faults} == {0, 1, 2, 3}


def test_short_training_and_unknown_fault_are_refused() -> None:
    with pytest.raises(ValueError, match="A training of 2 steps is too short for 3 faults."):
        schedule(0, steps=2)
    with pytest.raises(UnknownFaultError, match="There is no fault 'flood'; there are host, slice, drain, driver"):
        fault_named("flood")
