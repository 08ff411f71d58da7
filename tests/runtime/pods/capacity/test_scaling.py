"""A flexible pod chooses its size and the time of its next attempt to grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.runtime.pods.capacity.allocator import ElasticSize, ScalingTimes

HOUR = 3600.0


def flexible(sizes=(4, 2, 1)):
    return ElasticSize(sizes, ScalingTimes())


def test_pod_starts_with_largest_free_size():
    assert [flexible().first(free) for free in range(7)] == [None, 1, 2, 2, 4, 4, 4]
    assert flexible([4, 2]).first(1) is None


def test_pod_of_largest_size_never_checks_capacity():
    pod = flexible()
    pod.running(4, 0)
    assert pod.next_look(99 * HOUR) is None
    assert pod.grow_to(9, 99 * HOUR) is None


def test_capacity_check_waits_after_scaling_then_every_3_hours():
    pod = flexible()
    pod.running(1, 0)
    assert pod.next_look(HOUR) == 12 * HOUR
    assert pod.grow_to(9, 11 * HOUR) is None
    assert pod.grow_to(0, 12 * HOUR) is None
    assert pod.next_look(12 * HOUR) == 15 * HOUR
    assert pod.grow_to(1, 15 * HOUR) == 2


def test_restart_with_other_size_delays_growth():
    pod = flexible()
    pod.running(1, 0)
    pod.running(1, 11 * HOUR)
    assert pod.next_look(11 * HOUR) == 12 * HOUR
    pod.running(2, 12 * HOUR)
    assert pod.next_look(13 * HOUR) == 24 * HOUR


def test_failed_reservation_costs_one_capacity_check():
    pod = flexible()
    pod.running(1, 0)
    assert pod.grow_to(3, 12 * HOUR) == 4  # the reservation then fails: the pod continues with one slice
    assert pod.next_look(12 * HOUR) == 15 * HOUR


def test_size_outside_num_slices_is_refused():
    with pytest.raises(ValueError, match=r"num_slices=\[4, 2, 1\]"):
        flexible().running(3, 0)


SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4)
MOMENTS = st.lists(
    st.tuples(st.floats(0.1, 10 * HOUR), st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=60
)


@pytest.mark.slow
@given(SIZES, MOMENTS)
def test_oscillating_capacity_keeps_check_interval_and_size(sizes, moments):
    """Each moment sets the elapsed time, the capacity, a slice loss and a failed reservation."""
    times = ScalingTimes(look_s=3 * HOUR, rescale_s=12 * HOUR)
    pod, now, size = ElasticSize(sizes, times), 0.0, None
    looks, scaled_at, former = [], None, None
    for passes, capacity, lost, taken_away in moments:
        now += passes
        if size is None or lost or capacity < size:
            new = pod.first(capacity)
            assert new is None or new in sizes and new <= capacity
            assert new is not None or capacity < min(sizes)
            if new is None:
                size = None
                continue
            if new != former:
                scaled_at = now
            size = former = new
            pod.running(size, now)
            continue
        due = pod.next_look(now)
        assert (due is None) == (size == max(sizes))
        grown = pod.grow_to(capacity - size, now)
        if due is None or now < due:
            assert grown is None
            continue
        looks.append(now)
        if grown is not None:
            assert grown in sizes and size < grown <= capacity
            assert now - scaled_at >= times.rescale_s
            if not taken_away:
                size = former = grown
                scaled_at = now
                pod.running(size, now)
    assert all(later - sooner >= times.look_s for sooner, later in zip(looks, looks[1:], strict=False))
