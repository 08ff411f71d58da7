"""Format of the lines of a cluster's status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.fleets import write_fleet
from tradewind.fleet.fleet_file import load_fleet
from tradewind.fleet.lifecycle.inventory import ClusterReport, NodeLine, RayStatus


@pytest.mark.parametrize(
    ("state", "in_ray", "note"),
    [
        ("PREEMPTED", 2, "Ray has not noticed yet"), ("PREEMPTED", 0, ""), ("READY", 2, ""), ("PREEMPTED", None, ""),
    ],
)  # fmt: skip
def test_report_shows_no_live_hosts_for_preempted_slice(
    state: str, in_ray: int | None, note: str, tmp_path: Path
) -> None:
    cluster = load_fleet(write_fleet(tmp_path)).cluster()
    line = NodeLine("v4-16", "mine", state, 60.0, hosts=2, in_ray=in_ray)
    (row,) = ClusterReport(cluster, "its head was set up", [line], RayStatus()).rows()
    assert row[-1] == note
