"""Run repair passes until the repair is done, and record the calls that change the cloud."""

from __future__ import annotations

from tests.cloud_tpu.cloud import World
from tradewind.cloud_tpu.repair.passes import SliceRepair
from tradewind.cloud_tpu.repair.terms import RepairReport

WRITES = ("CreateNode", "DeleteNode", "CreateQueuedResource", "DeleteQueuedResource")


def run_until_over(repair: SliceRepair, world: World, passes: int = 100) -> RepairReport:
    for _ in range(passes):
        report = repair.run_once()
        if report.is_over:
            return report
        world.now += 1.0
    raise AssertionError(report.table())
