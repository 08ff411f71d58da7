"""A pin protects an output; an output has at most one pin, for all users."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tradewind.records.pins import Pin, add_pin, is_pinned, pin_path, read_pins, remove_pin


def test_pin_exists_for_its_output_until_removed(prefix: str) -> None:
    train, eval_ = (
        Pin(f"{prefix}/train-111111", "ada", "2026-03-01T00:00:00+00:00", "for the paper"),
        Pin(f"{prefix}/deep/eval-222222", "ada", "2026-03-01T00:00:00+00:00"),
    )
    assert read_pins(prefix) == []
    assert add_pin(prefix, train) and add_pin(prefix, eval_)
    assert read_pins(prefix) == [eval_, train]
    assert is_pinned(train.path) and is_pinned(eval_.path) and not is_pinned(f"{prefix}/train-333333")
    assert pin_path(prefix, train.path).startswith(f"{prefix}/.tradewind/pins/")
    assert remove_pin(prefix, train.path)
    assert not remove_pin(prefix, train.path)
    assert read_pins(prefix) == [eval_]


def test_first_of_concurrent_pins_counts(prefix: str) -> None:
    pins = [Pin(f"{prefix}/train-111111", f"user {number}", "now") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        were_set = list(pool.map(lambda pin: add_pin(prefix, pin), pins))
    assert were_set.count(True) == 1
    assert read_pins(prefix) == [pins[were_set.index(True)]]
