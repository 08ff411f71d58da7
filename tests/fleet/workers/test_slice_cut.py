"""A lock's note of a slice cut is untrusted input.

It cannot recreate slices of other users, and causes no traceback in a command.
"""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.cloud_tpu.slice_types import slice_type
from tradewind.fleet.clusters import CLUSTER_LABEL
from tradewind.fleet.workers.manual_slices import FleetError, SliceCut

BODY = {"acceleratorType": slice_type("v4-8").name, "labels": {CLUSTER_LABEL: "here"}}
QUEUED = {"spot": {}, "tpu": {"nodeSpec": [{"nodeId": "hero-2", "node": BODY}]}}
CUT = SliceCut("hero", "1/2", ["v4-8", "v4-8"], {"hero-1": BODY, "hero-2": QUEUED})
DETAILS = CUT.to_json()


def test_what_was_written_down_is_gone_on_with() -> None:
    assert SliceCut.of(DETAILS, "here") == CUT and SliceCut.of({}, "here") is None


@pytest.mark.parametrize(
    "changed",
    [
        {"slice": None}, {"slice": "../hero"}, {"identity": 7}, {"kinds": "v4-8"}, {"kinds": ["v4-8"]},
        {"kinds": [["v4-8"], 7]}, {"bodies": [BODY, BODY]}, {"bodies": {"hero-1": BODY, "other": BODY}},
        {"bodies": {"hero-1": BODY, "hero-x": BODY}}, {"bodies": {"hero-1": BODY, "hero-2": 7}},
        {"bodies": {"hero-1": BODY, "hero-2": {**BODY, "labels": {CLUSTER_LABEL: "away"}}}},
        {"bodies": {"hero-1": BODY, "hero-2": {**BODY, "labels": 7}}},
        {"bodies": {"hero-1": BODY, "hero-2": {"spot": {}, "tpu": {"nodeSpec": []}}}},
        {"kinds": ["v4-8"] * 1000, "bodies": {f"hero-{number}": BODY for number in range(1, 1001)}},
    ],
    ids=lambda changed: ascii(changed)[:60],
)  # fmt: skip
def test_what_is_no_cut_of_ours_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(FleetError, match="Cluster here: its lock does not say which slice was being cut"):
        SliceCut.of({**DETAILS, **changed}, "here")
