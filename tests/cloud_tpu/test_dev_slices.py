"""The code bounds and checks a session's description of its slice before it uses it."""

from __future__ import annotations

import json

import pytest

from tradewind.cloud_tpu.host_files import BadDevSliceError, DevHostInfo, DevSlice, is_dev_name

HELD = DevSlice("one", (DevHostInfo("10.0.0.7", "10.0.0.7/12/345"), DevHostInfo("10.0.0.8", "10.0.0.8/13/346")))


def test_last_line_of_holder_counts() -> None:
    assert DevSlice.in_log("Waiting.\n") is None
    assert DevSlice.in_log(f"{DevSlice(refused='none').line()}\n{HELD.line()}\nLater\n") == HELD
    refused = DevSlice(refused="No v4-8 slice is free.")
    assert DevSlice.in_log(refused.line()) == refused


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "-oProxyCommand=ls"},
        {"name": "../one"},
        {"name": "one", "hosts": []},
        {"hosts": [{"ip": "10.0.0.7; ls", "mark": "a/1/2"}]},
        {"hosts": [{"ip": "10.0.0.7", "mark": "$(ls)"}]},
        {"hosts": [{"ip": "10.0.0.7", "mark": "10.0.0.7/1/2\nX=1"}]},
        {"hosts": [{"ip": "10.0.0.7"}]},
        {"hosts": 5},
    ],
)
def test_invalid_slice_or_hosts_are_refused(fields: dict[str, object]) -> None:
    good = json.loads(HELD.line().partition(" ")[2])
    with pytest.raises(BadDevSliceError):
        DevSlice.in_log(f"TRADEWIND_DEV_SLICE {json.dumps({**good, **fields})}")
    with pytest.raises(BadDevSliceError):
        DevSlice.in_log("TRADEWIND_DEV_SLICE [1")


def test_session_name_is_plain_and_short() -> None:
    assert all(map(is_dev_name, ("ada", "a", "ada-2", "a" * 30)))
    assert not any(map(is_dev_name, ("", "2a", "-a", "a-", "a--b", "a.b", "a b", "A", "a" * 31, "a\n", "a/../b", "ä")))
