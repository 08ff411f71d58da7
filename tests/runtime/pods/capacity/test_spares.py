"""Permission to hold free slices for standbys; test_pod covers the standbys themselves."""

from __future__ import annotations

import pytest

from tradewind.runtime.pods.capacity import allocator


@pytest.mark.parametrize(("wanted", "held"), [(None, False), (True, True), (False, False)])
def test_autoscaled_free_slices_are_held_only_on_request(
    wanted: bool | None, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "is_autoscaled", lambda: True)
    assert allocator.may_hold(wanted)() is held
